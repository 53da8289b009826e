"""The model of files and crashes, and the injector of faults: crash tests rely on them."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pulsar_nack.ledger.faults import FaultyFiles, SimulatedCrash
from pulsar_nack.ledger.files import Files, OsFiles
from pulsar_nack.ledger.memory import MemoryFiles

SYNCED, LATER = b"s" * 40, b"l" * 40


def write(files: Files, path: Path, data: bytes, offset: int = 0) -> int:
    """Write a file with some content; return its descriptor."""
    descriptor = files.create(path)
    assert files.write(descriptor, memoryview(data), offset) == len(data)
    return descriptor


def outcomes(prepare: Callable[[MemoryFiles], object], tries: int = 300) -> list[dict[str, bytes]]:
    """Return what many crashes leave."""
    found = []
    for seed in range(tries):
        files = MemoryFiles(Random(seed))
        prepare(files)
        found.append(files.after_crash().tree())
    return found


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    """Return files and an empty folder in them."""
    if request.param == "os":
        return OsFiles(), tmp_path
    files = MemoryFiles()
    files.make_folder(Path("/f"))
    return files, Path("/f")


def test_both_kinds_of_files_agree(place: tuple[Files, Path]) -> None:
    """Files in memory behave like real ones: contents, names, errors and locks."""
    files, folder = place
    descriptor = write(files, folder / "a", b"hello")
    files.write(descriptor, memoryview(b"world"), 7)
    assert (files.size(descriptor), files.read(descriptor, 99, 3)) == (12, b"lo\0\0world")
    files.truncate(descriptor, 4)
    files.sync(descriptor)
    files.close(descriptor)
    descriptor = files.open(folder / "a", writable=True)
    assert files.read(descriptor, 99, 0) == b"hell"
    files.close(descriptor)
    files.close(write(files, folder / "b", b"other"))
    files.rename(folder / "a", folder / "b")
    files.make_folder(folder / "c")
    files.rename(folder / "c", folder / "d")
    files.close(files.create(folder / "d" / "x"))
    files.sync_folder(folder)
    assert sorted(files.names(folder)) == ["b", "d"]
    assert (files.is_folder(folder / "d"), files.is_folder(folder / "b"), files.is_folder(folder / "no")) == (
        True,
        False,
        False,
    )
    lock = files.lock(folder / "l")
    with pytest.raises(BlockingIOError):
        files.lock(folder / "l")
    files.close(lock)
    files.close(files.lock(folder / "l"))
    wrong: list[tuple[type[OSError], Callable[[], object]]] = [
        (FileNotFoundError, lambda: files.open(folder / "no")),
        (FileNotFoundError, lambda: files.remove(folder / "no")),
        (FileNotFoundError, lambda: files.names(folder / "no")),
        (FileNotFoundError, lambda: files.rename(folder / "no", folder / "new")),
        (FileExistsError, lambda: files.make_folder(folder / "d")),
        (NotADirectoryError, lambda: files.names(folder / "b")),
        (IsADirectoryError, lambda: files.create(folder / "d")),
        (OSError, lambda: files.remove_folder(folder / "d")),
        (OSError, lambda: files.close(9999)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    files.remove(folder / "d" / "x")
    files.remove_folder(folder / "d")
    files.remove(folder / "b")
    assert files.names(folder) == ["l"]


def test_what_was_synced_is_there() -> None:
    """Synced content and names survive every crash."""

    def prepare(files: MemoryFiles) -> None:
        files.sync(write(files, Path("/a"), SYNCED))
        files.sync_folder(Path("/"))

    assert outcomes(prepare, 50) == [{"/a": SYNCED}] * 50


def test_what_was_not_synced_may_be_there() -> None:
    """Unsynced content may be there wholly, not at all, in part from the front, with holes, or as zeros."""

    def prepare(files: MemoryFiles) -> None:
        descriptor = write(files, Path("/a"), SYNCED)
        files.sync(descriptor)
        files.sync_folder(Path("/"))
        files.write(descriptor, memoryview(LATER), 40)

    tails = {found["/a"][40:] for found in outcomes(prepare)}
    assert all(found["/a"][:40] == SYNCED for found in outcomes(prepare))
    assert {b"", LATER, bytes(16) + LATER[16:32] + bytes(8), bytes(40)} <= tails
    assert len({len(tail) for tail in tails if LATER.startswith(tail)}) > 10


def test_names_and_content_are_apart() -> None:
    """A name without a folder's sync may be missing; with one it is there, though its content may not be."""
    unsynced = outcomes(lambda files: files.sync(write(files, Path("/a"), SYNCED)))
    assert {} in unsynced
    assert {"/a": SYNCED} in unsynced

    def prepare(files: MemoryFiles) -> None:
        write(files, Path("/a"), SYNCED)
        files.sync_folder(Path("/"))

    named = outcomes(prepare)
    assert all("/a" in found for found in named)
    assert {"/a": b""} in named


def test_a_rename_is_done_or_not() -> None:
    """After an unsynced rename one of the names is there, never both, never none."""

    def prepare(files: MemoryFiles) -> None:
        files.sync(write(files, Path("/a"), SYNCED))
        files.sync_folder(Path("/"))
        files.rename(Path("/a"), Path("/b"))

    assert {next(iter(found)) for found in outcomes(prepare) if len(found) == 1} == {"/a", "/b"}
    assert {len(found) for found in outcomes(prepare)} == {1}


def test_a_failed_sync_leaves_doubt() -> None:
    """After a failed sync a second one reports success without having written what the first one dropped."""

    def prepare(files: MemoryFiles) -> None:
        faulty = FaultyFiles(files)
        descriptor = write(faulty, Path("/a"), SYNCED)
        faulty.fail(errno.EIO, "sync")
        with pytest.raises(OSError, match="Input/output error"):
            faulty.sync(descriptor)
        faulty.sync(descriptor)
        faulty.sync_folder(Path("/"))
        assert faulty.read(descriptor, 99, 0) == SYNCED

    assert {b"", SYNCED} <= {found["/a"] for found in outcomes(prepare)}


def test_failures_are_chosen() -> None:
    """Operations fail by name, after some that pass, for a number of times or for ever, until healed."""
    files = FaultyFiles(MemoryFiles(), most_per_write=3)
    descriptor = files.create(Path("/a"))
    assert files.write(descriptor, memoryview(b"hello"), 0) == 3
    files.fail(errno.ENOSPC, "write", skip=1, times=2)
    files.fail(errno.EACCES, "remove", times=math.inf)
    files.write(descriptor, memoryview(b"x"), 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            files.write(descriptor, memoryview(b"x"), 0)
    files.write(descriptor, memoryview(b"x"), 0)
    for _ in range(3):
        with pytest.raises(PermissionError):
            files.remove(Path("/a"))
    files.heal()
    files.remove(Path("/a"))
    assert files.history == ["create", *["write"] * 5, *["remove"] * 4]


@pytest.mark.parametrize("after", [False, True])
def test_crash_is_the_end(after: bool) -> None:
    """A crash comes before or after its operation, is no Exception, and nothing is done from then on."""
    files = FaultyFiles(MemoryFiles())
    files.crash(1, after=after)
    files.create(Path("/a"))
    with pytest.raises(SimulatedCrash):
        files.make_folder(Path("/b"))
    with pytest.raises(SimulatedCrash):
        files.names(Path("/"))
    assert not issubclass(SimulatedCrash, Exception)
    assert files.is_folder(Path("/b")) == after


def test_a_killed_process_loses_nothing() -> None:
    """When only the process ends all is there as it was, not more durable than before, and no lock is held."""
    files = MemoryFiles(Random(1))
    write(files, Path("/a"), SYNCED)
    files.lock(Path("/l"))
    found = files.after_kill()
    found.lock(Path("/l"))
    assert found.tree()["/a"] == SYNCED
    assert any(found.after_crash().tree().get("/a") != SYNCED for _ in range(20))
