"""Apache Pulsar's jars, fetched by Maven into a cache folder once and checked before each use.

PULSAR_VERSION chooses the version; each version has its own folder. The folder is made beside its final place and
renamed into it, so it is either complete or absent. Its stamp is a digest of the pom and of the names and sizes of all
jars: if the pom changes, or a jar is missing or cut short, the folder is assembled again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

DEFAULT_VERSION = "3.0.7"
POM = Path(__file__).with_name("pom.xml")
MAVEN_TIMEOUT = 1_200.0
JAVA_AT_LEAST = 17


class AssemblyError(RuntimeError):
    """The broker cannot be assembled on this machine; the message says what is missing or failed."""


def version() -> str:
    """``PULSAR_VERSION``, or the default; raises AssemblyError if it is not a version."""
    given = os.environ.get("PULSAR_VERSION") or DEFAULT_VERSION
    if re.fullmatch(r"\d+\.\d+\.\d+", given, re.ASCII) is None:
        raise AssemblyError(f"PULSAR_VERSION={given}: not a version of Apache Pulsar such as {DEFAULT_VERSION}")
    return given


def assemble() -> Path:
    """Return the folder with the broker's jars; fetch it with Maven (about 200 MB) if it is missing or damaged."""
    home = _home()
    home.parent.mkdir(parents=True, exist_ok=True)
    with locked(home.with_name(f"{home.name}.lock")):
        if not is_whole(home):
            _assemble_into(home)
    return home / "lib"


def cache_folder() -> Path:
    """Return ``PULSAR_NACK_CACHE``, or ``.cache`` in the repository's root."""
    given = os.environ.get("PULSAR_NACK_CACHE")
    return Path(given).expanduser().resolve() if given else POM.parents[2] / ".cache"


def _home() -> Path:
    return cache_folder() / f"pulsar-{version()}"


def is_whole(home: Path) -> bool:
    """Return whether the folder was made from the current pom and is complete."""
    try:
        return (home / "stamp").read_text() == _stamp(home)
    except OSError:
        return False


def find_java() -> str:
    """Return the ``java`` of JAVA_HOME or of the path; raise AssemblyError without version 17 or later."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise AssemblyError(f"no java found (JAVA_HOME={home}): a Java of version {JAVA_AT_LEAST} or later is needed")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < JAVA_AT_LEAST:
        raise AssemblyError(f"{java} is too old, version {JAVA_AT_LEAST} or later is needed; it says: {output.strip()}")
    return java


def missing_tools() -> str | None:
    """Return why a broker cannot be started here, or None; raise AssemblyError if PULSAR_VERSION is not a version."""
    home = _home()
    try:
        find_java()
    except AssemblyError as error:
        return str(error)
    if shutil.which("mvn") is None and not is_whole(home):
        return "no mvn found: Maven is needed to fetch the broker"
    return None


def _assemble_into(home: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise AssemblyError("no mvn found: Maven is needed to fetch the broker")
    print(
        f"Fetching Apache Pulsar {version()} with Maven into {home} (once, about 200 MB)", file=sys.stderr, flush=True
    )
    for stale in home.parent.glob(f"{home.name}.part-*"):  # left by a run that was killed: only we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{home.name}.part-", dir=home.parent, ignore_cleanup_errors=True) as made:
        fresh = Path(made) / "fresh"
        fresh.mkdir()
        copy_dependencies(maven, POM, fresh / "lib", f"-Dpulsar.version={version()}")
        if not (fresh / "lib" / f"pulsar-broker-{version()}.jar").exists():
            raise AssemblyError("Maven reported success, but pulsar-broker is not among the jars")
        (fresh / "stamp").write_text(_stamp(fresh))
        if home.exists():
            home.rename(Path(made) / "old")
        fresh.rename(home)


def copy_dependencies(maven: str, pom: Path, lib: Path, *options: str) -> None:
    """Fetch a pom's dependencies into a folder; raise AssemblyError if Maven fails."""
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
    try:
        done = subprocess.run(
            [*command, "-DincludeScope=runtime", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAVEN_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssemblyError(f"Maven did not finish within {MAVEN_TIMEOUT:.0f} s") from error
    if done.returncode:
        raise AssemblyError(f"Maven failed with exit code {done.returncode}:\n{done.stdout[-4_000:]}")


def _stamp(home: Path) -> str:
    digest = hashlib.sha256(POM.read_bytes())
    for jar in sorted((home / "lib").iterdir()):
        digest.update(f"{jar.name} {jar.stat().st_size}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, which keeps out other processes that lock it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
