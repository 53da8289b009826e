"""Assembling the broker for tests: once, completely or not at all, with a clear error if it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="the broker for tests needs Linux or macOS")

from tests.broker import _assembly, standalone
from tests.broker._assembly import AssemblyError, assemble

Maven = Callable[[str], Path]
WORKS = 'mkdir "$lib"; echo jar > "$lib/pulsar-broker-3.0.7.jar"; echo jar > "$lib/other.jar"'


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maven:
    """Puts a shell script in Maven's place, with ``$lib`` as the folder asked for; returns the list of its calls."""
    monkeypatch.setenv("PULSAR_NACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PULSAR_VERSION", raising=False)
    script, calls = tmp_path / "mvn", tmp_path / "calls"
    calls.touch()
    monkeypatch.setattr("shutil.which", lambda *_, **__: str(script))

    def put(body: str) -> Path:
        find = "for word; do case $word in -DoutputDirectory=*) lib=${word#*=};; esac; done"
        script.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{find}\n{body}\n')
        script.chmod(0o755)
        return calls

    return put


def count(calls: Path) -> int:
    """Return how often the stand-in was run."""
    return len(calls.read_text().splitlines())


def test_assembles_once(maven: Maven, tmp_path: Path) -> None:
    """The first call fetches the runtime jars of our pom, the second finds them."""
    calls = maven(WORKS)
    lib = assemble()
    assert lib == tmp_path / "cache" / "pulsar-3.0.7" / "lib"
    assert sorted(jar.name for jar in lib.iterdir()) == ["other.jar", "pulsar-broker-3.0.7.jar"]
    assert assemble() == lib
    assert count(calls) == 1
    assert f"-f {_assembly.POM} dependency:copy-dependencies" in calls.read_text()
    assert calls.read_text().rstrip().endswith("-DincludeScope=runtime -Dpulsar.version=3.0.7")


def test_each_version_has_its_own_folder(maven: Maven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PULSAR_VERSION chooses the version, which has its own folder; jars of another version are refused."""
    calls = maven(WORKS)
    usual = assemble()
    monkeypatch.setenv("PULSAR_VERSION", "4.0.7")
    with pytest.raises(AssemblyError, match="pulsar-broker is not among the jars"):
        assemble()
    maven(WORKS.replace("3.0.7", "4.0.7"))
    assert assemble() == assemble() == tmp_path / "cache" / "pulsar-4.0.7" / "lib"
    assert "-Dpulsar.version=4.0.7" in calls.read_text().splitlines()[-1]
    monkeypatch.setenv("PULSAR_VERSION", "")
    assert assemble() == usual
    assert count(calls) == 3


@pytest.mark.parametrize("given", ["4.0", "4.0.7-SNAPSHOT", "latest", "../4.0.7", "4.0.7 ", "٤.0.7"])
def test_what_is_no_version(maven: Maven, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """A version that is not three numbers is refused before anything is fetched, on the command line too."""
    calls = maven(WORKS)
    monkeypatch.setenv("PULSAR_VERSION", given)
    for ask in (assemble, _assembly.missing_tools):
        with pytest.raises(AssemblyError, match=r"not a version of Apache Pulsar such as 3\.0\.7"):
            ask()
    assert standalone.main(["run", "--", "false"]) == 1
    assert count(calls) == 0


@pytest.mark.parametrize("harm", ["missing", "cut", "added", "stamp", "pom"])
def test_assembles_a_broken_folder_again(
    maven: Maven, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A jar that is missing, cut short or unknown, no stamp, or another pom makes it fetch the broker again."""
    calls = maven(WORKS)
    lib = assemble()
    if harm == "missing":
        (lib / "other.jar").unlink()
    elif harm == "cut":
        (lib / "other.jar").write_text("")
    elif harm == "added":
        (lib / "third.jar").touch()
    elif harm == "stamp":
        (lib.parent / "stamp").unlink()
    else:
        changed = tmp_path / "pom.xml"
        changed.write_text(_assembly.POM.read_text() + "<!-- changed -->")
        monkeypatch.setattr(_assembly, "POM", changed)
    assemble()
    assert count(calls) == 2
    assert sorted(jar.name for jar in lib.iterdir()) == ["other.jar", "pulsar-broker-3.0.7.jar"]


def test_failure_leaves_nothing(maven: Maven, tmp_path: Path) -> None:
    """When Maven fails half-way, or brings no broker, the error says so, and a partial folder is not complete."""
    maven(f"{WORKS}; echo could not resolve; exit 3")
    with pytest.raises(AssemblyError, match=r"(?s)exit code 3.*could not resolve"):
        assemble()
    maven('mkdir "$lib"')
    with pytest.raises(AssemblyError, match="pulsar-broker is not among the jars"):
        assemble()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["pulsar-3.0.7.lock"]
    stale = tmp_path / "cache" / "pulsar-3.0.7.part-killed"  # left by a run that was killed
    (stale / "fresh" / "lib").mkdir(parents=True)
    maven(WORKS)
    lib = assemble()
    assert not stale.exists()
    (lib / "other.jar").unlink()
    maven("exit 1")
    with pytest.raises(AssemblyError, match="exit code 1"):
        assemble()
    assert not _assembly.is_whole(lib.parent)


def test_no_maven(maven: Maven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Maven the error says so; an assembled broker does not need Maven."""
    monkeypatch.setattr(_assembly, "find_java", lambda: "java")
    with monkeypatch.context() as without:
        without.setattr("shutil.which", lambda *_, **__: None)
        with pytest.raises(AssemblyError, match="Maven is needed"):
            assemble()
        assert "Maven is needed" in str(_assembly.missing_tools())
    maven(WORKS)
    lib = assemble()
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert _assembly.missing_tools() is None
    assert assemble() == lib


@pytest.mark.parametrize(
    ("output", "fits"),
    [('openjdk version "17.0.15"', True), ('openjdk version "21" 2023', True), ('java version "1.8.0_1"', False)],
)
def test_java_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, *, fits: bool) -> None:
    """A Java before version 17 is refused with its own version text; a later one is accepted."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if fits:
        assert _assembly.find_java() == str(java)
    else:
        with pytest.raises(AssemblyError, match="too old"):
            _assembly.find_java()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java the error says which version is needed."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(AssemblyError, match="version 17 or later is needed"):
        _assembly.find_java()
