"""Child processes that never outlive their owner, and free ports for them.

The child leads its own process group, so that Ctrl-C in a terminal reaches only the owner, which decides. A small
watcher in the same group reads a pipe that only the owner holds. When the owner ends in any manner, even by kill -9,
the pipe ends, and the watcher kills the child and removes its folder. A death signal set with ``prctl`` was rejected:
it fires when the *thread* that started the child ends, and brokers are often started on a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# $$ is the pid of the child itself, since the shell execs it; the watcher keeps the group alive, so that the pid is not
# given to anyone else while the watcher may still use it.
_WATCHED = """
exec 3<&0 </dev/null
folder=$1
shift
(
  cat <&3 >/dev/null
  kill -9 $$
  if [ -n "$folder" ]; then sleep 0.2; rm -rf -- "$folder"; fi
) 2>/dev/null &
exec "$@" 3<&-
"""

# Below the ranges from which Linux and macOS take the ports of outgoing connections: a client that keeps reconnecting
# to a stopped broker could otherwise be given the broker's own port and connect to itself.
_PORTS = range(17_000, 32_000)


class GuardedProcess:
    """A running child with its output in a log file; ``folder`` is removed if the owner dies."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        with log.open("ab") as output:
            self._popen = subprocess.Popen(  # noqa: S603 - the command comes from this package, not from input
                ["/bin/sh", "-c", _WATCHED, "sh", str(folder or ""), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process id of the child, which is also that of its group."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, None while the child runs; minus the signal's number if one ended it."""
        return self._popen.poll()

    def stop(self, grace: float = 5.0) -> None:
        """Ask the child to end, and kill it after ``grace`` seconds; it is gone when this returns or raises."""
        try:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the child and its watcher at once, as ``kill -9`` does. Idempotent."""
        if self._popen.stdin is None or self._popen.stdin.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._popen.stdin.close()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which nobody listens now; another process may take it before you do."""
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(f"no free port on {host} in {_PORTS.start} to {_PORTS.stop - 1}")
