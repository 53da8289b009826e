"""Processes that say what they do until they are killed: forks of one that has imported what they run.

As a command, ``python -m tests.victims MODULE`` imports a module and forks for each line on its input, which has the
arguments of the module's ``main`` as JSON. A fork says its number first; when it has ended, the command says so.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
OVER = "over\n"


class Victims:
    """Starts and kills them, one after the other."""

    def __init__(self, input_: IO[str], output: IO[str]) -> None:
        self._input, self._output = input_, output

    def kill_after(self, lines: int, *arguments: object) -> list[str]:
        """Start a process, kill it after this many lines, and return all complete lines."""
        print(json.dumps(arguments), file=self._input, flush=True)
        pid, said = int(self._output.readline()), list[str]()
        while (line := self._output.readline()) != OVER:
            assert line, "what forks them has ended"
            said.append(line)
            if len(said) == lines:
                os.kill(pid, signal.SIGKILL)
        said.pop()  # a line that was cut, or else an empty one
        assert len(said) >= lines, f"it ended after {len(said)} lines"
        return said


@contextmanager
def victims(module: str) -> Iterator[Victims]:
    """Import a module in a process, whose forks run its coroutine function ``main``."""
    command = [sys.executable, "-m", "tests.victims", module]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Victims(process.stdin, process.stdout)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def main(name: str) -> None:
    """Fork for each line of the input."""
    module = importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            print(os.getpid(), flush=True)
            asyncio.run(module.main(*json.loads(line)))
            os._exit(0)
        os.waitpid(pid, 0)
        print(f"\n{OVER}", end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
