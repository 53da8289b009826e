"""What the tests of crashes share: homes of logs, and what a crash at any operation of a run leaves of them.

A run is played once, to its end. At each operation that changes something, its home and its model are copied, as they
are at that instant. So what a crash leaves is compared with what had been reported until then; only the recovery is
played once for each crash.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, TypeVarTuple, Unpack

from obstore.store import MemoryStore

from pulsar_nack import Fixed
from pulsar_nack.ledger import LocalLogStore, LogStore, ObjectLogStore
from pulsar_nack.testing import FaultyFiles, FaultyObjects, MemoryFiles, VirtualClockEventLoop
from tests.tiers import sample

FOLDER = Path("/some/logs")
CHANGING = ("create", "write", "truncate", "sync", "sync_folder", "rename", "remove", "make_folder", "remove_folder", "delete")

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_M = TypeVar("_M", bound="Forkable")


class _Loop(VirtualClockEventLoop):
    """Does the work of threads by itself, when nothing else is left to do: what was reported before is known by then."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        done: asyncio.Future[_T] = self.create_future()
        self.call_later(1e-6, self._work, done, func, *args)
        return done

    def _work(self, done: asyncio.Future[_T], func: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> None:
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)


def play(life: Coroutine[Any, Any, _T]) -> _T:
    """Run on virtual time and without threads, so that each run is the same."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(life)


class Forkable(Protocol):
    """A model of what a run does; a copy of it is what is known at the time of a crash."""

    def fork(self) -> Self:
        """Return a copy."""
        ...


class Home:
    """Logs in a folder on simulated files, of which a crash may leave anything that was not synced."""

    def __init__(self, random: Random, files: MemoryFiles | None = None) -> None:
        self.random = random
        self._files = files or MemoryFiles(random)
        self.faults: FaultyFiles | FaultyObjects = FaultyFiles(self._files, most_per_write=400)

    def fork(self, random: Random, *, is_killed: bool = False) -> Home:
        """Return what the next process finds when the machine crashes now, or where only the process was killed."""
        found = self._files.fork(random)
        return Home(random, found if is_killed else found.after_crash())

    def fail(self, skip: int, times: int) -> None:
        """Let some operations that change something fail, after others have passed."""
        self.faults.fail(self.random.choice([errno.ENOSPC, errno.EIO]), *CHANGING, skip=skip, times=times)

    async def open(self) -> LogStore:
        """Open the store of logs."""
        assert isinstance(self.faults, FaultyFiles)
        return await LocalLogStore.open(FOLDER, max_segment_bytes=1024, threads=1, files=self.faults)

    def check_clean(self, logs: set[str]) -> None:
        """Check that nothing lies there but these logs, and locks of some of them."""
        for path in self._files.tree():
            folder, _, rest = path.removeprefix(f"{FOLDER}/").partition("/")
            if rest:
                assert folder.removesuffix(".log") in logs
                assert rest.endswith(".segment")
            else:
                assert folder.removesuffix(".lock") in logs


class ObjectHome(Home):
    """Object storage: what a request has done is there. (A put that arrives after the crash is one that was done.)"""

    def __init__(self, random: Random, store: MemoryStore | None = None) -> None:
        self.random = random
        self.store = store or MemoryStore()
        self.faults = FaultyObjects(self.store, random=random)

    def fork(self, random: Random, *, is_killed: bool = False) -> ObjectHome:
        """Return what the next process finds, which is what there is."""
        store = MemoryStore()
        for item in self.store.list().collect():
            store.put(item["path"], self.store.get(item["path"]).bytes())
        return ObjectHome(random, store)

    def fail(self, skip: int, times: int) -> None:
        is_done = self.random.random() < 0.5
        assert isinstance(self.faults, FaultyObjects)
        self.faults.fail(errno.EIO, "create", "delete", skip=skip, times=times, is_done=is_done)

    async def open(self) -> LogStore:
        assert isinstance(self.faults, FaultyObjects)
        return await ObjectLogStore.open(
            self.faults, max_object_bytes=2048, max_small_objects=5, threads=1, attempts=2, backoff=Fixed(0)
        )

    def check_clean(self, logs: set[str]) -> None:
        paths = [item["path"] for item in self.store.list().collect()]
        assert sum(path.startswith("catalog/") for path in paths) == 1
        folders = {path.split("/")[1] for path in paths if path.startswith("logs/")}
        assert {folder.rpartition(".")[0] for folder in folders} == logs
        assert len(folders) == len(logs)
        assert len(paths) <= 1 + 25 * len(logs)


HOMES: dict[str, Callable[[Random], Home]] = {"local": Home, "object": ObjectHome}


class Run(Protocol[_M]):
    """The life of one process on a home, beside a model that outlives it; made of both and a seed."""

    home: Home
    model: _M

    def __init__(self, home: Home, model: _M, seed: int) -> None: ...

    async def live(self) -> None:
        """Live a whole life, in which crashes are of interest."""
        ...

    async def live_on(self) -> None:
        """Open what a crash left, and do a few things."""
        ...

    async def recover(self, random: Random) -> None:
        """Open what a crash left, compare it with the model, go on to the end, and check that nothing lies about."""
        ...


class Crash(NamedTuple, Generic[_M]):
    """What one crash left, and what was known then."""

    random: Random
    home: Home
    model: _M


def crashes(
    run: Run[_M], life: Coroutine[Any, Any, None], seed: object, *, only: int | None = None, kills: float = 0
) -> list[Crash[_M]]:
    """Play a life to its end; return what a crash leaves at each operation that changes something, before or after it.

    :param only: at the operation with this number only
    :param kills: the share of the crashes of only the process
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
    """Let another process go on with what a crash left."""
    play(type(run)(crash.home, crash.model, seed).recover(crash.random))


def crash_everywhere(run: Run[_M], seed: int, *, most: int | None = None, kills: float = 0) -> int:
    """Crash a run at its operations that change something, or so many of them; return at how many it can be."""
    found = crashes(run, run.live(), seed, kills=kills)
    for crash in sample(found if most is None else found[:: -(-len(found) // most)]):
        recover(run, crash, seed + 1)
    return len(found)


def crash_again_and_again(run: Run[_M], seed: int, most: int, *, kills: float = 0) -> int:
    """Crash a run, and three times those that open what it left; return how often one crashed."""
    first = crashes(run, run.live(), seed, kills=kills)
    total = 0
    for crash in sample(first[:: -(-len(first) // most)]):
        total += 1
        for again in range(3):
            next_run = type(run)(crash.home, crash.model, seed + again)
            at = crash.random.randrange(20)
            next_crash = crashes(next_run, next_run.live_on(), crash.random.random(), only=at, kills=kills)
            if not next_crash:  # it ended before; nothing is to be recovered
                crash = Crash(crash.random, next_run.home, next_run.model)
                break
            (crash,) = next_crash
            total += 1
        recover(run, crash, seed)
    return total


def fail_everywhere(start: Callable[[Random], Run[_M]], seed: int, most: int) -> int:
    """Let operations fail, once or a few times, and the run crash later; return how often it crashed."""
    run = start(Random(seed))
    points = len(crashes(run, run.live(), seed))
    total = 0
    for number in sample(range(seed % 3, points, -(-points // most))):
        random = Random(f"{seed} {number}")
        run = start(random)
        run.home.fail(number, random.choice([1, 1, 2, 5]))
        for crash in crashes(run, run.live(), seed, only=number + random.randrange(40)):
            total += 1
            recover(run, crash, seed + 1)
    return total
