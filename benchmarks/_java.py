"""Peers in Java (``java/``), each in a fresh JVM: the proposals' own structure, and a listener of the Java client."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).parent / "java"
_ROOT = Path(__file__).parent.parent
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


# --- the Java client --------------------------------------------------------------------------------------------------


@cache
def client_jars() -> str | None:
    """Return the folder of the Java client's jars, which the tests fetch with Maven; None if it cannot be had."""
    if shutil.which("java") is None:
        return None
    code = "from tests.broker._java_client import jars; print(jars())"
    said = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=False)
    return said.stdout.strip() if said.returncode == 0 else None


def listener(url: str, topic: str, subscription: str, count: int) -> dict[str, float]:
    """Let a listener of the Java client acknowledge all messages; return the figures without those of the start."""
    program, words = str(_SOURCE / "Listener.java"), [url, topic, subscription, str(count)]
    command = ["java", "-Xmx512m", "-cp", f"{client_jars()}/*", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=True)
    rate, cpu_us = done.stdout.split()[-2:]
    return {"rate": float(rate), "cpu_us": float(cpu_us)}
