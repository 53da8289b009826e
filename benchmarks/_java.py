"""The proposals' own structure in Java (``java/``): built if Maven is found, run in a fresh JVM for each stream."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).parent / "java"
_BUILT = Path(__file__).parent.parent / ".cache" / "benchmarks-java"
_MEMORY = "3g"
_LONGEST_S = 900


@cache
def why_not() -> str | None:
    """Build the peer; return why it cannot be used, or None if it can."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        return "no Java peer: java and mvn are needed"
    build = subprocess.run(
        [maven, "-q", "-B", "-f", str(_SOURCE / "pom.xml"), "compile"],
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if build.returncode:
        return f"no Java peer: mvn compile failed: {(build.stdout + build.stderr).strip()[-300:]}"
    return None


@cache
def run(stream: str, count: int, bits: int, repeats: int) -> dict[str, str]:
    """Measure the peer with a stream; return its figures, {} if it cannot be used. Without rounds: memory only."""
    if why_not() is not None:
        return {}
    command = ["java", f"-Xmx{_MEMORY}", "-XX:+UseSerialGC", "-cp", f"{_BUILT / 'classes'}:{_BUILT / 'lib'}/*", "Peer"]
    command += [stream, str(count), str(bits), str(repeats)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=True).stdout
    return dict(line.rsplit(" ", 1) for line in said.splitlines())


def rounds(count: int) -> int:
    """Return the number of rounds: after the first few the peer's code is compiled."""
    return 20 if count > 100_000 else 3


def figure(stream: str, count: int, bits: int, repeats: int, name: str) -> float | None:
    """Return one figure of the peer, or None if it is missing."""
    said = run(stream, count, bits, repeats).get(name)
    return None if said is None else float(said)
