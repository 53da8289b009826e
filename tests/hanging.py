"""Storage that does not answer: a log store's threads hang, on virtual time and without any real thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from pulsar_nack.ledger import LocalLogStore, LogStore, ObjectLogStore
from pulsar_nack.ledger._local import LogDirectory
from pulsar_nack.ledger._object_requests import RetryingClient
from pulsar_nack.ledger._object_store import ObjectDirectory
from pulsar_nack.ledger.memory import InPlaceExecutor, MemoryFiles
from pulsar_nack.testing import VirtualClockEventLoop
from tests.takeovers import MemoryObjects

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FOLDER: Final = Path("/state")


class _Hanging(Future[_T]):
    """The future of a hanging job; the loop does not wait for it."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the job's exception."""
        if not self.done():
            raise TimeoutError
        return super().exception(timeout)


class Threads(InPlaceExecutor):
    """An executor that does each job at once; while it hangs it does none, and running jobs cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs = 0
        self.hang_at: int | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def has_hung(self) -> bool:
        """Return whether a job waits for an answer."""
        return bool(self._waiting)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Do a job, or let it wait."""
        self.jobs += 1
        if self.hang_at is None or self.jobs <= self.hang_at:
            return super().submit(fn, *args, **kwargs)
        future: Future[_T] = _Hanging()
        future.set_running_or_notify_cancel()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockEventLoop)
        loop._holds -= 1  # time goes on
        self._waiting.append(partial(self._answer, future, partial(fn, *args, **kwargs)))
        return future

    def hang(self, *, after: int = 0) -> None:
        """Hang from the next job on, or after some more."""
        self.hang_at = self.jobs + after

    def answer(self) -> None:
        """Do the waiting jobs in order, and stop hanging."""
        self.hang_at = None
        while self._waiting:
            self._waiting.pop(0)()

    @staticmethod
    def _answer(future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(error)


class Storage:
    """A folder, or objects, in memory, and log stores on it."""

    def __init__(self, kind: str) -> None:
        self.is_shared = kind == "objects"
        self._files = MemoryFiles()
        self._objects = MemoryObjects({})

    def owners(self) -> dict[str, str]:
        """Return the owner of each log."""
        home = ObjectDirectory(RetryingClient(self._objects, attempts=1), 2048, 4, None)
        return dict(home._catalog._load().owners)

    def store(self) -> tuple[LogStore, Threads]:
        """Return another store on it, and its threads."""
        threads = Threads()
        if not self.is_shared:
            home = LogDirectory(self._files, _FOLDER, 1 << 26)
            home.open()
            return LocalLogStore(home, threads), threads
        objects = ObjectDirectory(RetryingClient(self._objects, attempts=1), 2048, 4, None)
        objects.open()
        return ObjectLogStore(objects, threads, InPlaceExecutor(1)), threads
