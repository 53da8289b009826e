"""Back-pressure: how much may be unacknowledged, and which nacks wait for room.

A broker stops delivering when a consumer holds too many unacknowledged messages (50 000 by default). Holding one more
nack then helps nobody, so it waits. It never waits while a message is ready for the user: the caller may be the only
one who takes messages, and taking one is what makes room. Nor does it wait if everything unacknowledged is nacks that
wait, as nobody would make room. So the bounds are exceeded by the number of callers at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable
from typing import Final

from .._waiting import WaitingCalls
from ..errors import BrokerError
from ._message_table import MessageTable
from ._port import SupportsSessions

_log = logging.getLogger("pulsar_nack.consumer")
_NEAR: Final = 0.8
HELD_BACK_S: Final = 10.0
"""How long a receiver waits for nothing, with messages unacknowledged, until the consumer asks the broker why."""
_MAX_REFUSALS: Final = 3
"""After this many refused questions the consumer does not ask the broker again."""


class UnackedLimiter:
    """Admits nacks, first come, first served.

    :param table: counts what is unacknowledged here
    :param limit: how many may be, None: any number
    :param prefetched: how many more the transport prefetches
    :param must_admit: whether the next call is not to wait, whatever the bounds say
    """

    def __init__(self, table: MessageTable, limit: int | None, prefetched: int, must_admit: Callable[[], bool]) -> None:
        self.limit = limit
        self.near = math.inf if limit is None else _NEAR * min(limit, sys.maxsize)
        """From how many unacknowledged messages on :meth:`warn_if_near` warns."""
        self.prefetched = prefetched
        self.held_back_at: int | None = None
        """How many deliveries had come when the broker last said that it holds messages back."""
        self.waiters = WaitingCalls[bool]()
        """The calls that wait; each is woken with whether it must pass, else it checks again."""
        self._table = table
        self._must_admit = must_admit
        self._has_warned = False
        self._has_warned_of_waiting = False
        self._closed_by: Exception | None = None

    def count(self) -> int:
        """Return how many messages are unacknowledged here."""
        return self._table.delivered + self._table.held

    @property
    def is_free(self) -> bool:
        """Return whether fewer messages are unacknowledged than the limit allows."""
        return self.limit is None or self._table.delivered + self._table.held < self.limit

    async def wait_for(self, fits: Callable[[], bool]) -> None:
        """Wait until the count is below the limit and ``fits`` says yes, or the call must not wait.

        The caller fills the room before it awaits anything else, so that the next one sees it.
        """
        while not self._may_pass(fits):
            if self._closed_by is not None:
                raise self._closed_by
            self._warn_that_one_waits()
            if await self.waiters.wait(self._pass_on):
                return

    def _may_pass(self, fits: Callable[[], bool]) -> bool:
        return (self.is_free and fits()) or self._must_admit()

    def _pass_on(self, must_pass: bool) -> None:
        if must_pass:
            self.admit_one()

    def changed(self) -> None:
        """Let all waiting calls check again, in their order; O(waiting)."""
        if self.waiters:
            self.waiters.wake_all(value=False)

    def admit_one(self) -> None:
        """Admit one call whatever the bounds say: a message is ready."""
        if self.waiters:
            self.waiters.wake_first(value=True)

    def warn_if_near(self) -> None:
        """Warn, once, when the count comes near the limit."""
        if not self._has_warned and self.count() >= self.near:
            self._has_warned = True
            _log.warning(
                "%d messages are unacknowledged; at %s the broker stops delivering; shorter delays or faster"
                " handlers would help",
                self.count(),
                self.limit,
            )

    def _warn_that_one_waits(self) -> None:
        """Warn, once, that a nack waits although the limit is not reached, of which :meth:`warn_if_near` warns."""
        if self.is_free and not self._has_warned_of_waiting:
            self._has_warned_of_waiting = True
            _log.warning(
                "a call of nack waits for room, with %d messages held: max_held or max_local_bytes is reached; "
                "shorter delays or higher limits would help",
                self._table.held,
            )

    def close(self, error: Exception) -> None:
        """Raise ``error`` in every call that waits."""
        self._closed_by = error
        self.waiters.fail_all(error)


async def watch_held_back(
    port: SupportsSessions, wanted: asyncio.Event, limiter: UnackedLimiter, received: Callable[[], int]
) -> None:
    """Ask the broker why nothing comes while messages are wanted, and some are unacknowledged; warn once."""
    has_warned, refusals = False, 0
    while refusals < _MAX_REFUSALS:
        await wanted.wait()
        before = received()
        await asyncio.sleep(HELD_BACK_S)
        if received() != before or not wanted.is_set() or not limiter.count():
            continue
        try:
            reason = await port.held_back()
        except BrokerError as error:
            _log.debug("the broker does not say why nothing comes: %s", error)
            refusals += 1
            continue
        limiter.held_back_at = None if reason is None else before
        if reason is not None and not has_warned:
            has_warned = True
            _log.warning(
                "nothing comes while %d messages are unacknowledged here, of at most %s: %s; acknowledge some, "
                "raise that limit, or set unacked_limit below it",
                limiter.count(),
                "any number" if limiter.limit is None else limiter.limit + limiter.prefetched,
                reason,
            )
