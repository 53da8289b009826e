"""Requests to a store of objects that fail, crash or come late when they are told to: for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from ._fault import SimulatedCrash, Watcher
from ._object_requests import Objects, as_objects

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class _Failure(NamedTuple):
    requests: frozenset[str]
    number: int
    begin: int
    end: float
    is_done: bool


class FaultyObjects:
    """A store of objects over another one, of which any request can be made to fail or to be the last one.

    Requests are counted from 0: create, get, list, delete; each object that is deleted counts. ``history`` names those
    that were begun. It is given to :meth:`~pulsar_nack.ledger.ObjectLogStore.open` in place of the store, and what a
    crash leaves is in the store below. Objects that are deleted together are deleted in a random order.

    :param random: for that order
    """

    def __init__(self, inner: ObjectStore | Objects, *, random: Random | None = None) -> None:
        self.inner = as_objects(inner)
        self.history: list[str] = []
        self.late: list[tuple[str, bytes]] = []
        self.is_crashed = False
        self._random = random or Random(0)  # noqa: S311
        self._failures: list[_Failure] = []
        self._hooks: dict[int, Callable[[], object]] = {}
        self._crash_at: int | None = None
        self._crash_after = False
        self._crash_late = False
        self._lock = RLock()
        self._watcher: Watcher | None = None

    @property
    def url(self) -> str:
        """Return where the store below is."""
        return self.inner.url

    def fail(self, number: int, *requests: str, skip: int = 0, times: float = 1, is_done: bool = False) -> None:
        """Let requests fail with an error of the system.

        :param number: an errno
        :param requests: which ones; without any, all
        :param skip: how many of them pass first, counted from now
        :param times: how many fail then; ``math.inf``: all from then on
        :param is_done: they are carried out, and only their answers are lost
        """
        chosen = frozenset(requests)
        begin = skip + self._count(chosen)
        self._failures.append(_Failure(chosen, number, begin, begin + times, is_done))

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._failures.clear()

    def crash(self, at: int, *, after: bool = False, late: bool = False) -> None:
        """Crash at the request with this number: before it is carried out, or after.

        :param late: a create that the crash came before is on its way, and carried out by :meth:`land`
        """
        self._crash_at, self._crash_after, self._crash_late = at, after, late

    def call(self, at: int, hook: Callable[[], object]) -> None:
        """Call this before the request with this number is carried out, for what others do meanwhile."""
        self._hooks[at] = hook

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher`` before each request, and after each one that succeeded.

        :param watcher: gets "before" or "after", and the name of the request
        """
        self._watcher = watcher

    def land(self) -> None:
        """Carry out the creates that are on their way."""
        while self.late:
            try:
                self.inner.create(*self.late.pop(0))
            except FileExistsError:
                continue

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not be there."""
        self._step("create", lambda: self.inner.create(key, data), (key, data))

    def get(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        found: list[bytes] = []
        self._step("get", lambda: found.append(self.inner.get(key, start, length)))
        return found[0]

    def list(self, folder: str) -> dict[str, int]:
        """List what is below a folder."""
        found: list[dict[str, int]] = []
        self._step("list", lambda: found.append(self.inner.list(folder)))
        return found[0]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, one after the other."""
        with self._lock:
            order = self._random.sample(keys, len(keys))
        for key in order:
            self._step("delete", partial(self.inner.delete, [key]))

    def _count(self, requests: frozenset[str]) -> int:
        return sum(not requests or name in requests for name in self.history)

    def _step(self, request: str, work: Callable[[], object], create: tuple[str, bytes] | None = None) -> None:
        with self._lock:
            if self.is_crashed:
                raise SimulatedCrash(request)
            at = len(self.history)
            if at == self._crash_at and not self._crash_after:
                if self._crash_late and create is not None:
                    self.late.append(create)
                self._crash(request)
            if self._watcher is not None:
                self._watcher("before", request)
            failure = self._failure(request)
            self.history.append(request)
        if hook := self._hooks.pop(at, None):
            hook()
        if failure is None:
            work()
        else:
            if failure.is_done:
                with suppress(OSError):
                    work()
            raise OSError(failure.number, os.strerror(failure.number))
        if self._watcher is not None:
            self._watcher("after", request)
        if at == self._crash_at:
            self._crash(request)

    def _crash(self, request: str) -> None:
        self.is_crashed = True
        raise SimulatedCrash(request)

    def _failure(self, request: str) -> _Failure | None:
        for failure in self._failures:
            if failure.requests and request not in failure.requests:
                continue
            if failure.begin <= self._count(failure.requests) < failure.end:
                return failure
        return None
