"""Requests that wait for their answers, and when each has waited for too long. One timer, for the earliest of them."""

from __future__ import annotations

import asyncio
import copy
import heapq
from typing import NamedTuple

from ...errors import RequestTimeoutError
from .. import _pulsar_pb2 as pb

Answer = asyncio.Future[pb.BaseCommand]


class _Waiting(NamedTuple):
    answer: Answer
    what: str
    timeout: float


class Requests:
    """The table of one connection. ``len`` is how many wait.

    The heap may hold requests that are answered already; they are dropped when their time comes, or when they are the
    greater part of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, where: str) -> None:
        self._loop = loop
        self._timeout = timeout
        self._where = where
        self._waiting: dict[int, _Waiting] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def next_id(self) -> int:
        """Return an id that no other request of the connection has."""
        self._last_id += 1
        return self._last_id

    def expect(self, request_id: int, what: str, timeout: float | None = None) -> Answer:
        """Return what will hold the answer to a request, or its :class:`RequestTimeoutError` after ``timeout`` s."""
        answer: Answer = self._loop.create_future()
        waits = self._timeout if timeout is None else timeout
        self._waiting[request_id] = _Waiting(answer, what, waits)
        heapq.heappush(self._deadlines, (self._loop.time() + waits, request_id))
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._prune()
        self._arm()
        return answer

    def answered(self, request_id: int, command: pb.BaseCommand) -> None:
        """Hand over an answer; one that nobody waits for any more is dropped."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(command)

    def failed(self, request_id: int, error: Exception) -> None:
        """Hand over why there will be no answer."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(error)

    def forget(self, request_id: int) -> None:
        """Drop a request whose asker does not wait any more."""
        self._waiting.pop(request_id, None)

    def wait_on(self, request_id: int) -> None:
        """Let a request wait without a limit: the broker has told that it works on it."""
        self._deadlines = [each for each in self._deadlines if each[1] != request_id]
        heapq.heapify(self._deadlines)
        self._arm()

    def fail_all(self, error: Exception) -> None:
        """Hand an error to all that wait."""
        waiting, self._waiting = self._waiting, {}
        self._deadlines.clear()
        self._arm()
        for each in waiting.values():
            if not each.answer.done():
                own = copy.copy(error)  # which is raised with a traceback of its own
                own.__cause__ = error.__cause__
                each.answer.set_exception(own)

    def _prune(self) -> None:
        self._deadlines = [each for each in self._deadlines if each[1] in self._waiting]
        heapq.heapify(self._deadlines)

    def _arm(self) -> None:
        first = self._deadlines[0][0] if self._deadlines else None
        if self._timer is not None:
            if first is not None and self._timer.when() <= first:
                return
            self._timer.cancel()
            self._timer = None
        if first is not None:
            self._timer = self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._deadlines and (self._deadlines[0][1] not in self._waiting or self._deadlines[0][0] <= now):
            _, request_id = heapq.heappop(self._deadlines)
            waiting = self._waiting.get(request_id)
            if waiting is not None:
                self.failed(
                    request_id,
                    RequestTimeoutError(f"{self._where}: no answer to {waiting.what} within {waiting.timeout:g} s"),
                )
        self._arm()
