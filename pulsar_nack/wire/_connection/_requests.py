"""Requests that wait for their responses, with one timer for the earliest timeout, and the errors in responses.

A response is reported in the turn of the loop in which it arrives, not by a future that its owner awaits: an
acknowledgement has many owners, and each turn costs as much as several messages.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..._foreign import quoted
from ..._tasks import own_copy
from ...errors import (
    BrokerError,
    BrokerRefusedError,
    ConnectionLostError,
    PulsarNackError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from .._protocol import _pulsar_pb2 as pb

_WITH_RESULT: Final = (pb.BaseCommand.LOOKUP_RESPONSE, pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
_WITH_CODE: Final = (pb.BaseCommand.GET_SCHEMA_RESPONSE, pb.BaseCommand.CONSUMER_STATS_RESPONSE)
_TRANSIENT: Final = frozenset(
    {"UnknownError", "MetadataError", "PersistenceError", "ServiceNotReady", "TooManyRequests"}
)
_BUSY: Final = frozenset({"ConsumerBusy", "ProducerBusy"})

Answered = Callable[[pb.BaseCommand | None, Exception | None], None]
"""Called once with the response, or with the error; it must not block. What it raises is reported to the loop."""


class _Pending(NamedTuple):
    answered: Answered
    what: str
    timeout: float


class PendingRequests:
    """The requests of one connection, by request id; ``len`` is how many wait.

    The heap may hold requests that have their response already. They are dropped when their time comes, or when they
    are the greater part of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, where: str) -> None:
        self._loop = loop
        self._timeout = timeout
        self._where = where
        self._pending: dict[int, _Pending] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_id = 0
        self._ended_by: Exception | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def next_id(self) -> int:
        """Return an id that no other request of the connection has."""
        self._last_id += 1
        return self._last_id

    def begin(self, what: str, answered: Answered, timeout: float | None = None, request_id: int | None = None) -> int:
        """Return the id of a request, a new one unless it is given.

        :param answered: gets the response, or RequestTimeoutError after ``timeout`` seconds
        :raises Exception: a copy of the error of :meth:`fail_all`, after that was called
        """
        if self._ended_by is not None:
            raise own_copy(self._ended_by)
        if request_id is None:
            self._last_id = request_id = self._last_id + 1
        seconds = self._timeout if timeout is None else timeout
        self._pending[request_id] = _Pending(answered, what, seconds)
        ends_at = self._loop.time() + seconds
        heapq.heappush(self._deadlines, (ends_at, request_id))
        if len(self._deadlines) > 2 * len(self._pending) + 64:
            self._prune()
        if self._timer is None or ends_at < self._timer.when():
            self._arm()
        return request_id

    def resolve(self, request_id: int, command: pb.BaseCommand) -> None:
        """Report the response to a request; ignored if the request was discarded."""
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            try:
                pending.answered(command, None)
            except Exception as fault:  # noqa: BLE001 - reported: the other responses are read
                self._report(pending, fault)

    def fail(self, request_id: int, error: Exception) -> None:
        """Fail a request; ignored if it was discarded."""
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._fail(pending, error)

    def discard(self, request_id: int) -> None:
        """Drop a request that nothing waits for any more."""
        self._pending.pop(request_id, None)

    def remove_timeout(self, request_id: int) -> None:
        """Let a request wait without a limit: the broker has confirmed that it is working on it."""
        self._deadlines = [each for each in self._deadlines if each[1] != request_id]
        heapq.heapify(self._deadlines)
        self._arm()

    def fail_all(self, error: Exception) -> None:
        """Fail all requests, now and later, each with its own copy of the error, as each has its own traceback."""
        self._ended_by = error
        pending, self._pending = self._pending, {}
        self._deadlines.clear()
        self._arm()
        for each in pending.values():
            self._fail(each, own_copy(error))

    def _fail(self, pending: _Pending, error: Exception) -> None:
        try:
            pending.answered(None, error)
        except Exception as fault:  # noqa: BLE001 - reported: the other requests fail too
            self._report(pending, fault)

    def _report(self, pending: _Pending, fault: Exception) -> None:
        message = f"{self._where}: what was called with the outcome of {pending.what} raised an error"
        self._loop.call_exception_handler({"message": message, "exception": fault})

    def _prune(self) -> None:
        self._deadlines = [each for each in self._deadlines if each[1] in self._pending]
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
        while self._deadlines and (self._deadlines[0][1] not in self._pending or self._deadlines[0][0] <= now):
            _, request_id = heapq.heappop(self._deadlines)
            pending = self._pending.get(request_id)
            if pending is not None:
                problem = f"no answer to {pending.what} within {pending.timeout:g} s"
                self.fail(request_id, RequestTimeoutError(f"{self._where}: {problem}"))
        self._arm()


def set_response(
    response: asyncio.Future[pb.BaseCommand], command: pb.BaseCommand | None, error: Exception | None
) -> None:
    """Set the outcome of a request, unless its caller was cancelled."""
    if response.done():
        return
    if command is not None:
        response.set_result(command)
    elif error is not None:
        response.set_exception(error)


# --- errors ----------------------------------------------------------------------------------------------------------


def broker_error(code: int, text: str, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError:
    """Return the exception for an error code of the protocol and the broker's text.

    :param without_secrets: replaces credentials in the text
    """
    known = pb.ServerError.DESCRIPTOR.values_by_number.get(code)
    kind = TopicNotFoundError if code == pb.TopicNotFound else BrokerRefusedError
    return kind(f"ServerError {code}" if known is None else known.name, without_secrets(text))


def error_in(kind: int, body: Any, without_secrets: Callable[[str], str] = str) -> BrokerRefusedError | None:
    """Return the error that the body of a response of this kind holds, or None."""
    if (
        kind == pb.BaseCommand.ERROR
        or (kind == pb.BaseCommand.ACK_RESPONSE and body.HasField("error"))
        or (kind in _WITH_RESULT and body.response == body.Failed)
    ):
        return broker_error(body.error, body.message, without_secrets)
    if kind in _WITH_CODE and body.HasField("error_code"):
        return broker_error(body.error_code, body.error_message, without_secrets)
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: a lost connection, a timeout, or a broker that is not ready yet.

    Other refusals, such as missing rights or a subscription that is taken, are permanent.
    """
    if isinstance(error, BrokerRefusedError):
        return error.code in _TRANSIENT
    return isinstance(error, ConnectionLostError | RequestTimeoutError)


def is_busy(error: BaseException) -> bool:
    """Return whether another consumer or producer holds the exclusive place, and may leave it."""
    return isinstance(error, BrokerRefusedError) and error.code in _BUSY


def is_unknown_consumer(error: BrokerRefusedError) -> bool:
    """Return whether the broker does not know the requesting consumer: it may just have closed it."""
    return error.code == "ConsumerNotFound" or (
        error.code == "MetadataError" and "consumer not found" in error.text.lower()
    )


def as_text(error: BaseException) -> str:
    """Return an error as text for a log line; foreign errors with their type, because their text may be empty."""
    return str(error) if isinstance(error, PulsarNackError) else quoted(error)


def with_text(error: BrokerError, text: str) -> BrokerError:
    """Return a copy of an error with another text; other callers may get the original."""
    copied = copy.copy(error)
    copied.args = (text,)
    return copied
