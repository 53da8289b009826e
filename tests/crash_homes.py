"""What crash tests share: logs on storage, and what a crash at any operation of a run leaves of them.

A run is played once, to its end. Before and after each operation that changes something, its storage and its model are
copied. So what a crash leaves is compared with what had been reported until then; only the recovery is played once for
each crash.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, TypeVarTuple, Unpack

from obstore.store import MemoryStore

from pulsar_nack import Fixed
from pulsar_nack.ledger import LocalLogStore, LogStore, ObjectLogStore
from pulsar_nack.testing import FaultyFiles, FaultyObjects, MemoryFiles, VirtualClockEventLoop
from tests.tiers import sample, size

FOLDER = Path("/some/logs")
CHANGING = (
    "create",
    "write",
    "truncate",
    "sync",
    "sync_folder",
    "rename",
    "remove",
    "make_folder",
    "remove_folder",
    "delete",
)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_M = TypeVar("_M", bound="Forkable")


class _Loop(VirtualClockEventLoop):
    """Does the jobs of an executor in its own thread, and only when nothing else is ready to run.

    So all that earlier jobs reported has reached the model before the next operation on storage begins, at which a
    crash is tried. On a plain virtual clock the next job may begin first.
    """

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        done: asyncio.Future[_T] = self.create_future()
        self.call_later(1e-6, self._work, done, func, *args)
        return done

    def _work(self, done: asyncio.Future[_T], func: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> None:
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - raised where the job is awaited
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)


def play(life: Coroutine[Any, Any, _T]) -> _T:
    """Run on virtual time and without threads, each job of an executor in its turn."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(life)


class Forkable(Protocol):
    """A model of what a run does; a copy of it is what is known at the time of a crash."""

    def fork(self) -> Self:
        """Return a copy."""
        ...


class Home:
    """Logs in a folder on simulated files; a crash may leave any part of what was not synced."""

    def __init__(self, random: Random, files: MemoryFiles | None = None) -> None:
        self.random = random
        self.memory = files or MemoryFiles(random)
        self.files = FaultyFiles(self.memory, most_per_write=400)

    @property
    def faults(self) -> FaultyFiles | FaultyObjects:
        """Return the object that makes file operations fail."""
        return self.files

    def fork(self, random: Random, *, is_killed: bool = False) -> Self:
        """Return what the next process finds if the machine crashes now, or if only this process is killed."""
        found = self.memory.fork(random)
        return type(self)(random, found if is_killed else found.after_crash())

    def fail(self, operations: Sequence[str], skip: int, times: float) -> None:
        """Let some operations fail, after others have passed."""
        self.files.fail(self.random.choice([errno.ENOSPC, errno.EIO]), *operations, skip=skip, times=times)

    async def open(self) -> LogStore:
        """Open the store of logs."""
        return await LocalLogStore.open(FOLDER, max_segment_bytes=1024, threads=1, files=self.files)

    def check_clean(self, logs: set[str]) -> None:
        """Check that the folder contains only these logs, and locks of some of them."""
        for path in self.memory.tree():
            folder, _, rest = path.removeprefix(f"{FOLDER}/").partition("/")
            if rest:
                assert folder.removesuffix(".log") in logs
                assert rest.endswith(".segment")
            else:
                assert folder.removesuffix(".lock") in logs


class ObjectHome:
    """Logs on object storage, where every completed request is durable."""

    def __init__(self, random: Random, content: Mapping[str, bytes] | None = None) -> None:
        self.random = random
        self._store = MemoryStore()
        for path, data in (content or {}).items():
            self._store.put(path, data)
        self.objects = FaultyObjects(self._store, random=random)

    @property
    def faults(self) -> FaultyFiles | FaultyObjects:
        """Return the object that makes requests fail."""
        return self.objects

    def content(self) -> dict[str, bytes]:
        """Return all objects by their paths."""
        paths = [item["path"] for item in self._store.list().collect()]
        return {path: bytes(self._store.get(path).bytes()) for path in paths}

    def fork(self, random: Random, *, is_killed: bool = False) -> Self:
        """Return what the next process finds: all objects, however the process ended."""
        return type(self)(random, self.content())

    def fail(self, operations: Sequence[str], skip: int, times: float) -> None:
        """Let some requests fail after others have passed, or lose their answers."""
        is_done = self.random.random() < 0.5
        self.objects.fail(errno.EIO, *operations, skip=skip, times=times, is_done=is_done)

    async def open(self) -> LogStore:
        """Open the store of logs."""
        return await ObjectLogStore.open(
            self.objects, max_object_bytes=2048, max_small_objects=5, threads=1, attempts=2, backoff=Fixed(0)
        )

    def check_clean(self, logs: set[str]) -> None:
        """Check that the storage contains only these logs, of few objects each, and the catalog."""
        paths = self.content().keys()
        assert sum(path.startswith("catalog/") for path in paths) == 1
        folders = {path.split("/")[1] for path in paths if path.startswith("logs/")}
        assert {folder.rpartition(".")[0] for folder in folders} == logs
        assert len(folders) == len(logs)
        assert len(paths) <= 1 + 25 * len(logs)


AnyHome = Home | ObjectHome
HOMES: dict[str, Callable[[Random], AnyHome]] = {"local": Home, "object": ObjectHome}


class Run(Protocol[_M]):
    """One process on a storage, beside a model that outlives the process."""

    home: AnyHome
    model: _M

    def __init__(self, home: AnyHome, model: _M, seed: int) -> None: ...

    async def live(self) -> None:
        """Run a whole process, in which crashes are of interest."""
        ...

    async def live_on(self) -> None:
        """Open what a crash left, and make a few changes."""
        ...

    async def recover(self, random: Random) -> None:
        """Open what a crash left, compare it with the model, run to the end, and check that no leftovers remain."""
        ...


class Crash(NamedTuple, Generic[_M]):
    """What one crash left, and what was known then."""

    random: Random
    home: AnyHome
    model: _M


def crashes(
    run: Run[_M], life: Coroutine[Any, Any, None], seed: object, *, only: int | None = None, kills: float = 0
) -> list[Crash[_M]]:
    """Run to the end; return what a crash leaves before and after each operation that changes something.

    :param only: crash at the operation with this number only
    :param kills: the share of crashes in which only the process is killed
    """
    found: list[Crash[_M]] = []
    number = -1

    def watch(moment: str, operation: str) -> None:
        nonlocal number
        if operation in CHANGING:
            number += moment == "before"
            random = Random(f"{seed} {number}")
            if only in (None, number) and moment == random.choice(("before", "after")):
                home = run.home.fork(random, is_killed=random.random() < kills)
                found.append(Crash(random, home, run.model.fork()))

    run.home.faults.watch(watch)
    play(life)
    return found


def recover(run: Run[_M], crash: Crash[_M], seed: int) -> None:
    """Let another process continue with what a crash left."""
    play(type(run)(crash.home, crash.model, seed).recover(crash.random))


def crash_everywhere(run: Run[_M], seed: int, least: int, *, most: int | None = None, kills: float = 0) -> None:
    """Crash a run at each operation that changes something.

    :param least: the run has at least this many such operations
    :param most: crash at no more than this many of them, spread over the run
    """
    found = crashes(run, run.live(), seed, kills=kills)
    assert len(found) >= least
    for crash in sample(_some(found, most or len(found)), most=8):
        recover(run, crash, seed + 1)


def crash_again_and_again(run: Run[_M], seed: int, least: int, *, most: int, kills: float = 0) -> None:
    """Crash a run, and then up to three times a process that opens what the previous crash left.

    :param least: at least this many crashes happen in all
    :param most: the first run crashes at no more than this many operations
    """
    total = 0
    for crash in sample(_some(crashes(run, run.live(), seed, kills=kills), most), least=2):
        total += 1
        for again in range(3):
            recovering = type(run)(crash.home, crash.model, seed + again)
            at = crash.random.randrange(20)
            found = crashes(recovering, recovering.live_on(), f"{seed} {total}", only=at, kills=kills)
            if not found:
                break  # it ended before
            crash = found[0]
            total += 1
        recover(run, crash, seed)
    assert total >= size(least, fast=2)


def fail_everywhere(
    start: Callable[[Random], Run[_M]],
    seed: int,
    least: int,
    *,
    most: int,
    chosen: Sequence[Sequence[str]] = (CHANGING,),
) -> None:
    """Let operations fail, once or a few times, and crash the run later.

    :param least: at least this many crashes happen in all
    :param most: try no more than this many operations as the first that fails
    :param chosen: groups of operations; one group is drawn for each run, and its operations fail
    """
    run = start(Random(seed))
    total = 0
    for number in sample(_some(range(len(crashes(run, run.live(), seed))), most), least=3):
        random = Random(f"{seed} {number}")
        run = start(random)
        operations = random.choice(chosen)
        run.home.fail(operations, number if operations is CHANGING else number // 2, random.choice([1, 1, 2, 5]))
        for crash in crashes(run, run.live(), seed, only=number + random.randrange(40)):
            total += 1
            recover(run, crash, seed + 1)
    assert total >= size(least, fast=0)


def _some(points: Sequence[_T], most: int) -> Sequence[_T]:
    """Return at most this many points, spread over all of them."""
    return points[:: -(-len(points) // most)]
