"""Drops messages that wait here once the mark-delete position has passed them.

An administrator's skip or clear, an expiry, and another consumer move the mark-delete position past messages that are
held, requested, or on their way to the dead-letter topic. The broker does not announce that, so this asks for the
position while messages wait: within a second of a nack, half-way to its deadline if that is sooner, and then once a
second. A dead letter asks before it is published. While no message waits, nothing is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ..clock import Clock
from ..ids import Position
from ._id_relations import Place, place_of
from ._message_state import MessageState
from ._message_table import UNDELIVERED, MessageTable
from ._port import SupportsSessions

_log = logging.getLogger("pulsar_nack.consumer")
_INTERVAL_MS: Final = 1_000
_SOONEST_MS: Final = 100


class MarkDeleteWatch:
    """Asks for mark-delete positions, and settles waiting messages that they have passed.

    :param is_waiting: whether any message waits
    :param passed: called with the messages settled in this way
    """

    def __init__(
        self,
        port: SupportsSessions,
        table: MessageTable,
        clock: Clock,
        *,
        is_waiting: Callable[[], bool],
        passed: Callable[[Sequence[MessageState]], None],
    ) -> None:
        self._port = port
        self._table = table
        self._clock = clock
        self._is_waiting = is_waiting
        self._passed = passed
        self._new: dict[Place, dict[MessageState, None]] = {}
        """Messages that began to wait since the position was read last, of each place where something waits."""
        self._seen: dict[Place, tuple[int, int]] = {}
        self._next_at_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_time = asyncio.Event()

    def note(self, record: MessageState, delay_ms: int, now_ms: int | None = None) -> None:
        """Note that a message waits from now on, for this delay."""
        message_id = record.id
        place = message_id.topic, message_id[2]  # as place_of: the hot path
        if place not in self._new:
            self._new[place] = {}
        self._new[place][record] = None
        if self._next_at_ms is not None and delay_ms >= 2 * _INTERVAL_MS:
            return  # the next question is soon enough
        if now_ms is None:
            now_ms = self._clock.now_ms()
        at_ms = now_ms + min(max(delay_ms >> 1, _SOONEST_MS), _INTERVAL_MS)
        if self._next_at_ms is None or at_ms < self._next_at_ms:
            self._ask_at(at_ms, now_ms)

    def _ask_at(self, at_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1000, self._is_time.set)

    async def check(self, record: MessageState) -> None:
        """Check whether the position has passed one message; without a session, wait for one first."""
        position = await self._position(place_of(record.id))
        gone = [] if position is None else self._table.passed([record], position, self._clock.now_ms())
        if gone:
            self._passed(gone)

    async def run(self) -> None:
        """Ask for positions until cancelled."""
        try:
            while True:
                await self._is_time.wait()
                self._is_time.clear()
                await self._ask()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _ask(self) -> None:
        """Ask for the position of each place if it is time, and set the timer for the next time."""
        at_ms, now_ms = self._next_at_ms, self._clock.now_ms()
        if at_ms is None:
            return
        if at_ms > now_ms:  # the clock is not the loop's
            self._ask_at(at_ms, now_ms)
            return
        self._ask_at(now_ms + _INTERVAL_MS, now_ms)
        await asyncio.gather(*(self._follow(place) for place in list(self._new)))
        if not self._is_waiting():
            self._new.clear()
            self._seen.clear()
            self._next_at_ms = None

    async def _position(self, place: Place, limit_s: float | None = None) -> Position | None:
        topic, partition = place
        try:
            async with asyncio.timeout(limit_s):
                return await self._port.mark_delete_position(topic or "", partition)
        except Exception as error:  # noqa: BLE001 - tried again
            _log.debug("%s: no mark-delete position: %r", topic, error)
            return None

    async def _follow(self, place: Place) -> None:
        position = await self._position(place, _INTERVAL_MS / 1000)
        new, self._new[place] = self._new[place], {}
        if position is None:
            self._seen.pop(place, None)  # all messages are compared next time
            return
        is_moved = self._seen.get(place) != position
        self._seen[place] = position
        records = self._table.select(UNDELIVERED, place) if is_moved else new
        gone = self._table.passed(records, position, self._clock.now_ms())
        if gone:
            self._passed(gone)
