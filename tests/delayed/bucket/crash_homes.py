"""Homes of logs that crash when they are told to, and are found again as a crash may leave them."""

from __future__ import annotations

import errno
from concurrent.futures import Executor, Future
from pathlib import Path
from random import Random
from typing import Any, Protocol, Self

from obstore.store import MemoryStore

from pulsar_nack import Fixed, PulsarNackError
from pulsar_nack.ledger import LocalLogStore, LogStore, ObjectLogStore
from pulsar_nack.ledger._object_fault import FaultyObjects
from pulsar_nack.testing import FaultyFiles, MemoryFiles, SimulatedCrash

FOLDER = Path("/some/delayed")
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
)


class Inline(Executor):
    """Does the work where it is submitted, so that runs are the same each time, and quick."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Take what a pool of threads takes."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it now."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except (OSError, PulsarNackError, SimulatedCrash) as error:
            done.set_exception(error)
        return done


class CrashHome(Protocol):
    """A place for logs that crashes at an operation, once."""

    def changes(self) -> list[int]:
        """Return the numbers of the operations so far that changed something."""
        ...

    @property
    def is_crashed(self) -> bool:
        """Return whether it has crashed."""
        ...

    def crash(self, at: int, *, after: bool) -> None:
        """Crash at the operation with this number, before it or after."""
        ...

    def fail(self, skip: int, times: int) -> None:
        """Let some operations that change something fail, after others have passed."""
        ...

    def heal(self) -> None:
        """Let nothing fail any more."""
        ...

    def found(self) -> Self:
        """Return what the next process finds."""
        ...

    async def open(self) -> LogStore:
        """Open the store of logs."""
        ...

    def check_clean(self, logs: set[str]) -> None:
        """Check that nothing lies there but these logs."""
        ...


class LocalCrashHome:
    """A folder on simulated files, of which a crash may leave anything that was not synced."""

    def __init__(self, random: Random | None = None, files: MemoryFiles | None = None) -> None:
        self._files = FaultyFiles(files or MemoryFiles(random), most_per_write=400)

    def changes(self) -> list[int]:
        return [at for at, name in enumerate(self._files.history) if name in CHANGING]

    @property
    def is_crashed(self) -> bool:
        return self._files.is_crashed

    def crash(self, at: int, *, after: bool) -> None:
        self._files.crash(at, after=after)

    def fail(self, skip: int, times: int) -> None:
        self._files.fail(errno.ENOSPC, *CHANGING, skip=skip, times=times)

    def heal(self) -> None:
        self._files.heal()

    def found(self) -> LocalCrashHome:
        assert isinstance(self._files.inner, MemoryFiles)
        return LocalCrashHome(files=self._files.inner.after_crash())

    async def open(self) -> LogStore:
        return await LocalLogStore.open(FOLDER, max_segment_bytes=2048, files=self._files)

    def check_clean(self, logs: set[str]) -> None:
        assert isinstance(self._files.inner, MemoryFiles)
        names = {path.removeprefix(f"{FOLDER}/").partition("/")[0] for path in self._files.inner.tree()}
        assert {name for name in names if not name.endswith(".lock")} == {f"{log}.log" for log in logs}
        assert {name for name in names if name.endswith(".lock")} <= {f"{log}.lock" for log in logs}


class ObjectCrashHome:
    """Object storage: what a request has done is there, and a put may arrive after the crash."""

    def __init__(self, random: Random, store: MemoryStore | None = None) -> None:
        self._random = random
        self._store = store or MemoryStore()
        self._objects = FaultyObjects(self._store, random=random)

    @property
    def is_crashed(self) -> bool:
        return self._objects.is_crashed

    def changes(self) -> list[int]:
        return [at for at, name in enumerate(self._objects.history) if name in ("create", "delete")]

    def crash(self, at: int, *, after: bool) -> None:
        self._objects.crash(at, after=after, late=not after and self._random.random() < 0.5)

    def fail(self, skip: int, times: int) -> None:
        is_done = self._random.random() < 0.5
        self._objects.fail(errno.EIO, "create", "delete", skip=skip, times=times, is_done=is_done)

    def heal(self) -> None:
        self._objects.heal()

    def found(self) -> ObjectCrashHome:
        self._objects.land()
        return ObjectCrashHome(self._random, self._store)

    async def open(self) -> LogStore:
        return await ObjectLogStore.open(
            self._objects, max_object_bytes=2048, max_small_objects=5, threads=1, attempts=2, backoff=Fixed(0)
        )

    def check_clean(self, logs: set[str]) -> None:
        paths = [item["path"] for item in self._store.list().collect()]
        assert sum(path.startswith("catalog/") for path in paths) == 1
        folders = {path.split("/")[1] for path in paths if path.startswith("logs/")}
        assert {folder.rpartition(".")[0] for folder in folders} == logs
        assert len(folders) == len(logs)
