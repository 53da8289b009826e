"""What a tracker reports: events, to the hooks that receive them, and figures.

Times are ms of the tracker's clock, delays are in ms. A hook is any callable that takes one event. It must not block.
The first error that one raises is logged, and all are counted (``statistics().hook_errors``); none reaches the
tracker's users.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._check import check_list
from ..errors import InvalidArgumentError
from ..ids import MessageId

_log = logging.getLogger("pulsar_nack.hooks")


@dataclass(frozen=True, slots=True)
class Nacked:
    """Ids became pending, or were nacked again (``is_new`` is False; the earliest deadline wins).

    ``ids`` may be made lazily; ``deadline_ms`` is the exact deadline, not rounded down to a bucket.
    """

    ids: Sequence[MessageId]
    at_ms: int
    delay_ms: int
    deadline_ms: int
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The callback took these ids; ``attempt`` is 1 unless it failed for them before."""

    ids: Sequence[MessageId]
    at_ms: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class RedeliveryFailed:
    """The callback failed; the ids stay pending and are retried at ``retry_at_ms``."""

    ids: Sequence[MessageId]
    at_ms: int
    attempt: int
    error: BaseException
    retry_at_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An acknowledgement removed a pending id."""

    id: MessageId
    at_ms: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """All pending ids, ``count`` of them, were dropped."""

    count: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The tracker was closed; ``pending`` ids were not sent."""

    pending: int
    at_ms: int


NackEvent = Nacked | Redelivered | RedeliveryFailed | Cancelled | Cleared | Closed


NackHook = Callable[[NackEvent], None]
"""Any callable that handles one event; it receives every event of a tracker."""


class Hooks(Sequence[Any]):
    """Calls all hooks in order; logs the first error that they raise, and counts all."""

    __slots__ = ("_hooks", "errors")

    def __init__(self, hooks: Sequence[Any]) -> None:
        check_list("hooks", hooks, "a list of callables that take one event")
        self._hooks = tuple(hooks)
        for index, hook in enumerate(self._hooks):
            if not callable(hook):
                raise InvalidArgumentError(f"hooks[{index}]", hook, "a callable that takes one event")
        self.errors = 0

    def __len__(self) -> int:
        return len(self._hooks)

    def __getitem__(self, index: Any) -> Any:
        return self._hooks[index]

    def emit(self, event: object) -> None:
        """Call every hook, even if one raises.

        A hook is no coroutine, so a ``CancelledError`` that it raises comes from something that it called.
        """
        for hook in self._hooks:
            try:
                hook(event)
            except (Exception, CancelledError):  # noqa: BLE001 - counted, must not reach the user
                self.errors += 1
                if self.errors == 1:
                    _log.warning("a hook raised for %r; later errors are only counted", event, exc_info=True)


# -- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late calls of the callback were: ms between the start of their earliest bucket and the call.

    Over the last 1 024 calls that were not retries; all 0 before the first.
    """

    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0

    @classmethod
    def of(cls, calls: Iterable[int]) -> Lateness:
        """Return the percentiles of some calls, which were late by these ms."""
        late = sorted(calls)
        if not late:
            return cls()
        last = len(late) - 1
        return cls(late[last // 2], late[-(-last * 99 // 100)], late[last])


@dataclass(frozen=True, slots=True)
class NackStatistics:
    """A snapshot of a tracker; totals count since it was entered.

    :param pending: ids that are not due, including ``retrying``
    :param retrying: ids for which the callback failed and that wait for a retry
    :param in_flight: ids that the callback is processing
    :param held: what counts against ``max_held``: pending, in flight, and places of callers that were just woken
    :param waiting: callers of ``nack()`` that wait because ``max_held`` ids are held
    :param buckets: time buckets that are not empty
    :param bytes: estimated memory of the pending ids
    :param wakeups: how often the timer fired; ``early_wakeups`` of these came too early, and it was set again
    :param nacked: ids that were nacked, including those that were pending
    :param sent: ids that the callback took
    :param commands: calls of the callback; ``failed_commands`` of these raised, ``retries`` were retries
    :param cancelled: pending ids removed by an acknowledgement
    :param cleared: pending ids dropped by ``clear()``
    :param hook_errors: events for which a hook raised
    :param last_error: the last error of the callback as text
    :param lateness: see :class:`~pulsar_nack.nack.Lateness`
    """

    pending: int
    retrying: int
    in_flight: int
    held: int
    waiting: int
    buckets: int
    bytes: int
    wakeups: int
    early_wakeups: int
    nacked: int
    sent: int
    commands: int
    failed_commands: int
    retries: int
    cancelled: int
    cleared: int
    hook_errors: int
    last_error: str | None
    lateness: Lateness
