"""The Java client in its own JVM, controlled line by line (``java/Peer.java``); Maven fetches its jars once."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.broker._assembly import AssemblyError, cache_folder, copy_dependencies, find_java, locked

_SOURCE = Path(__file__).with_name("java")
_JVM = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


def jars() -> Path:
    """Return the folder with the client's jars; raise AssemblyError if they are missing and cannot be fetched."""
    home = cache_folder() / "java-client"
    home.mkdir(parents=True, exist_ok=True)
    pom, stamp = _SOURCE / "pom.xml", home / "pom.xml"
    with locked(home / "lock"):
        if not stamp.exists() or stamp.read_bytes() != pom.read_bytes():
            maven = shutil.which("mvn")
            if maven is None:
                raise AssemblyError("no mvn found: Maven is needed to fetch the Java client")
            shutil.rmtree(home / "lib", ignore_errors=True)
            copy_dependencies(maven, pom, home / "lib")
            shutil.copyfile(pom, stamp)
    return home / "lib"


class JavaClient:
    """One client, connected to one broker; commands run one at a time, from any thread."""

    def __init__(self, url: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._turn = threading.Lock()
        command = [find_java(), *_JVM, "-cp", f"{jars()}/*", str(_SOURCE / "Peer.java"), url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()

    def call(self, *words: str) -> list[list[str]]:
        """Send a command and return the lines of its answer, split into words."""
        return self.calls([words])[0]

    def calls(self, commands: list[tuple[str, ...]]) -> list[list[list[str]]]:
        """Send commands one after another, and return the answer to each."""
        with self._turn:
            return [self._answer(words) for words in commands]

    def _answer(self, words: tuple[str, ...]) -> list[list[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        lines: list[list[str]] = []
        while line := self._process.stdout.readline():
            said = line.rstrip("\n").split("\t")
            if said[0] == "ok":
                return lines
            if said[0] == "error":
                raise RuntimeError(f"Java: {words[0]}: {said[1]}")
            lines.append(said)
        self._log.seek(0)
        raise RuntimeError(f"Java ended at {words[0]}: {self._log.read()[-3_000:]}")
