"""The task of a subscription that reads what is to be delivered, and hands it to consumers.

It looks, in this order, for what came due, what waits to be sent, and what is new; asks the gate how much of it may go
out; reads that, and nothing else; and gives it to those whom the dispatcher names. When there is nothing to do it waits
for :meth:`Delivery.look`, which everything calls that changes something. It forgets to look only before it looks, so no
call is lost.

New is what lies at or behind ``read_at`` and is neither acknowledged, in flight, waiting nor held back. What was chosen
and could not be sent waits, also after an error or a cancellation. When the subscription is moved, whatever was begun
before is dropped, for it begins anew at the mark-delete position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ..cursor import BatchSet, Cursor
from ..delayed import DelayedDeliveryTracker
from ..errors import LedgerError, LogNotFoundError, TopicFormatError
from ..ids import Position
from ._admission import Admission
from ._deliveries import deliveries_of
from ._dispatcher import Dispatcher, SubscriptionType
from ._entry import NO_KEY, Entry
from ._ledgers import TopicLedgers
from ._receiver import Receiver
from ._waiting import Known

_AT_A_TIME: Final = 100
_LOOK_AHEAD: Final = 5_000
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_log = logging.getLogger("pulsar_nack.topic")


class Delivery:
    """Delivers one subscription's entries."""

    def __init__(
        self,
        name: str,
        topic: str,
        ledgers: TopicLedgers,
        *,
        cursor: Cursor,
        dispatcher: Dispatcher,
        admission: Admission,
    ) -> None:
        self.receivers: dict[int, Receiver] = {}
        self.tracker: DelayedDeliveryTracker | None = None
        self.failures = 0
        """How often entries could not be read."""
        self._name = name
        self._topic = topic
        self._ledgers = ledgers
        self._cursor = cursor
        self._dispatcher = dispatcher
        self._admission = admission
        self._wake = asyncio.Event()
        self._moves = 0
        self._read_at = self._beginning()

    def look(self) -> None:
        """Something has changed: there may be something to deliver."""
        self._wake.set()

    def read_anew(self) -> None:
        """Begin at the mark-delete position, as if nothing had been delivered yet."""
        self._moves += 1
        self._dispatcher.forget()
        self._read_at = self._beginning()

    def look_back(self) -> None:
        """Go back to the mark-delete position, for what is neither held by anybody nor waits: it was held back."""
        self._moves += 1
        self._read_at = min(self._read_at, self._beginning())

    def _beginning(self) -> Position:
        ledger, entry = self._cursor.mark_delete_position
        return Position(ledger, entry + 1)

    async def run(self) -> None:
        """Deliver, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            self._wake.clear()
            try:
                if await self._round():
                    await asyncio.sleep(0)  # others run, whatever there is to deliver
                else:
                    await self._wake.wait()
                pause = _FIRST_PAUSE
            except (LedgerError, TopicFormatError) as error:
                self.failures += 1
                _log.warning("subscription %s cannot read its topic, and tries again: %s", self._name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _round(self) -> bool:
        """Deliver some entries; return whether there may be more to do at once."""
        dispatcher = self._dispatcher
        most = min(dispatcher.room, _AT_A_TIME)
        if most <= 0:
            return False
        await self._take_due(most)
        again = dispatcher.to_send_again(_AT_A_TIME)
        in_order = dispatcher.kind is not SubscriptionType.SHARED
        if chosen := self._admission.choose(again, dispatcher.known, in_order=in_order):
            await self._deliver(chosen[:most], are_new=False)
            return True
        if not dispatcher.may_read_on or (self.tracker is not None and self.tracker.should_pause_all_deliveries()):
            return False
        return await self._read_on(most, before=again[0] if again else None)

    async def _take_due(self, most: int) -> None:
        """Have what came due wait, but for what was acknowledged before: nobody reads that."""
        tracker, moves = self.tracker, self._moves
        if tracker is None or not tracker.has_message_available():
            return
        mark = self._cursor.mark_delete_position
        due = [position for position in tracker.get_scheduled_messages(most) if position > mark]
        self._admission.due.update(due)
        self._dispatcher.add_again(due)
        for position in due:
            is_acked = await self._cursor.is_acked(position)
            if moves != self._moves:
                return
            if is_acked:
                self._acked(position)

    def _acked(self, position: Position) -> None:
        self._dispatcher.acked(position)
        self._admission.acked(position)

    async def _read_on(self, most: int, before: Position | None) -> bool:
        """Deliver what is new, up to an entry that the gate holds; return whether there may be more to do at once."""
        moves, start = self._moves, self._read_at
        found, read_at = await self._new_entries(start, most, before)
        if moves != self._moves:
            return True
        chosen = self._admission.choose(found, None)
        if len(chosen) < len(found):  # what the gate holds, and what follows, is looked at again
            held = next(position for position in found if position not in set(chosen))
            chosen = [position for position in chosen if position < held]
            read_at = held
        self._read_at = read_at
        if chosen:
            await self._deliver(chosen, are_new=True)
        return read_at != start

    async def _new_entries(
        self, start: Position, most: int, before: Position | None
    ) -> tuple[list[Position], Position]:
        """Return the next new entries from here, and the place behind them; nothing is read for that."""
        found: list[Position] = []
        ledgers, left = self._ledgers, _LOOK_AHEAD
        ledger, entry = start
        while len(found) < most and left > 0 and (before is None or (ledger, entry) < before):
            end = ledgers.entries(ledger)
            if end is None or entry >= end:
                following = ledgers.next_ledger(ledger)
                if following is None:
                    break
                ledger, entry = following, 0
                continue
            end = min(end, entry + left)
            if before is not None and before.ledger == ledger:
                end = min(end, before.entry)
            unacked = await self._cursor.unacked(ledger, entry, end - 1)
            new = (each for first, last in unacked for each in range(first, last + 1) if self._is_new(ledger, each))
            left -= end - entry
            entry = end
            for each in new:
                found.append(Position(ledger, each))
                if len(found) >= most:
                    entry = each + 1
                    break
        return found, Position(ledger, entry)

    def _is_new(self, ledger: int, entry: int) -> bool:
        dispatcher, position = self._dispatcher, Position(ledger, entry)
        if position in dispatcher.in_flight or dispatcher.is_to_send_again(position):
            return False
        tracker = self.tracker if dispatcher.kind.is_shared else None
        return tracker is None or not tracker.contains_message(ledger, entry)

    async def _deliver(self, positions: Sequence[Position], *, are_new: bool) -> None:
        """Read entries, those next to each other in one go, and send them; what cannot be read ends it."""
        moves, left = self._moves, list(positions)
        refused: set[int] = set()
        longest = len(left)
        try:
            while left:
                run = 1
                while run < min(len(left), longest) and left[run] == (left[0].ledger, left[0].entry + run):
                    run += 1
                try:
                    entries = await self._ledgers.read(left[0].ledger, left[0].entry, left[run - 1].entry)
                except (LedgerError, TopicFormatError):
                    if run == 1:
                        raise
                    longest = 1  # those before the one that cannot be read go out
                    continue
                for entry in entries:
                    if moves == self._moves:
                        await self._send(left[0], entry, refused, is_new=are_new, moves=moves)
                    if moves != self._moves:
                        return
                    del left[0]
        except LogNotFoundError:
            if left[0] > self._cursor.mark_delete_position:
                raise  # else its ledger was deleted after all of it was acknowledged
        finally:
            if left and moves == self._moves:
                self._keep(left)

    def _keep(self, positions: Sequence[Position]) -> None:
        """Have those wait that were not sent, and forget those that are acknowledged."""
        mark = self._cursor.mark_delete_position
        for position in positions:
            if position <= mark:
                self._acked(position)
        self._dispatcher.add_again([position for position in positions if position > mark])

    async def _send(self, position: Position, entry: Entry, refused: set[int], *, is_new: bool, moves: int) -> None:
        """Send an entry to whom it is for; what has a key in ``refused`` must not overtake what could not be sent."""
        dispatcher = self._dispatcher
        is_acked, batch = await self._state_of(position, entry)
        if moves != self._moves or position in dispatcher.in_flight:
            return
        if is_acked:
            self._acked(position)
            return
        if self._holds_back(position, entry):
            dispatcher.held_back(position)
            return
        key = entry.key_hash if dispatcher.kind is SubscriptionType.KEY_SHARED else NO_KEY
        known = Known(key, entry.batch_size)
        number = dispatcher.choose(position, key, refused)
        if number is None or not self._admission.lets_pass(position, entry.batch_size, waiting=not is_new):
            dispatcher.refused(position, known)
            refused.add(key)
            return
        left = (1 << len(entry.messages)) - 1 if batch is None else batch.unacked
        count = dispatcher.sent(position, number, left, known)
        self._admission.sent(position, entry.batch_size)
        indexes = range(len(entry.messages)) if batch is None else batch
        self.receivers[number].take(deliveries_of(self._topic, position, entry, indexes, count))

    async def _state_of(self, position: Position, entry: Entry) -> tuple[bool, BatchSet | None]:
        """Return whether an entry is acknowledged, and what of its batch is left, both as of the same moment."""
        while True:
            parts = self._dispatcher.parts_acked
            batch = await self._cursor.batch_set(position) if entry.is_batch else None
            is_acked = await self._cursor.is_acked(position)
            if parts == self._dispatcher.parts_acked:
                return is_acked, batch

    def _holds_back(self, position: Position, entry: Entry) -> bool:
        if entry.deliver_at_ms is None or self.tracker is None or not self._dispatcher.kind.is_shared:
            return False
        if position in self._admission.due:
            return False
        return self.tracker.add_message(position.ledger, position.entry, entry.deliver_at_ms)
