"""The task of a subscription that reads entries and sends them to consumers.

In each round it takes, in this order, delayed entries that are due, queued entries, and new ones; asks the gate how
many of them may be sent; reads those, and nothing else; and sends them to the consumers that the dispatcher chooses.
When there is nothing to do it waits for :meth:`DeliveryLoop.wake`, which is called after every change. A wake-up is
cleared before a round begins, so none is lost.

New entries lie at or after the read position and are neither acknowledged, in flight, queued nor delayed. Entries that
were chosen and could not be sent are queued, also after an error or a cancellation. When the subscription is moved, the
present round is dropped, and reading begins again at the mark-delete position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ..clock import Clock
from ..config import TopicConfig
from ..consumer import SessionEvent
from ..cursor import BatchSet, Cursor, DispatchGate, Reserve, worst_growth
from ..delayed import DelayedDeliveryTracker
from ..errors import LedgerError, LogNotFoundError, TopicFormatError
from ..ids import Position
from ._arguments import TopicSettings
from ._dispatch_queue import EntryInfo
from ._dispatcher import Dispatcher, SubscriptionType
from ._entry import NO_KEY, Entry, deliveries_of
from ._inbox import LocalInbox
from ._ledgers import TopicLedgers

_AT_A_TIME: Final = 100
_LOOK_AHEAD: Final = 5_000
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_log = logging.getLogger("pulsar_nack.topic")


class DeliveryLoop:
    """Delivers the entries of one subscription."""

    def __init__(
        self,
        name: str,
        topic: str,
        ledgers: TopicLedgers,
        settings: TopicSettings,
        *,
        cursor: Cursor,
        dispatcher: Dispatcher,
    ) -> None:
        self.inboxes: dict[int, LocalInbox] = {}
        self.tracker: DelayedDeliveryTracker | None = None
        self.failures = 0
        """How often entries could not be read."""
        self._name = name
        self._topic = topic
        self._ledgers = ledgers
        self._cursor = cursor
        self._dispatcher = dispatcher
        self._admission = AdmissionControl(cursor, dispatcher, settings.config, name, settings.clock)
        self._woken = asyncio.Event()
        self._moves = 0
        self._read_at = _after(cursor.mark_delete_position)

    @property
    def gate(self) -> DispatchGate:
        """Return the gate that new entries have to pass."""
        return self._admission.gate

    def wake(self) -> None:
        """Look for entries to deliver: something has changed."""
        self._woken.set()

    def rewind(self, *, forget: bool = False) -> None:
        """Read from the mark-delete position again, to find entries that are neither in flight nor queued.

        :param forget: whether the other entries are forgotten, as if nothing had been delivered yet
        """
        self._moves += 1
        if forget:
            self._dispatcher.forget()
        begin = _after(self._cursor.mark_delete_position)
        self._read_at = begin if forget else min(self._read_at, begin)

    def drop_unreceived(self, positions: Collection[Position], numbers: Iterable[int]) -> None:
        """Drop the messages of entries from the queues of these consumers: the entries came back."""
        for number in numbers:
            dropped = self.inboxes[number].give_back(positions)
            if dropped:
                self._dispatcher.take_room(number, -dropped)

    def forget(self, up_to: Position | None = None) -> None:
        """Forget all entries, or those up to one: they were skipped, or the subscription was moved."""
        gone = [each for each in self._dispatcher.in_flight if up_to is None or each <= up_to]
        self.drop_unreceived(gone, self.inboxes)
        self._dispatcher.forget(up_to)
        self.gate.reset()

    def report(self, event: SessionEvent, number: int) -> None:
        """Report an event of its session to a consumer."""
        self.inboxes[number].report(event, self._topic)

    def changed(self) -> None:
        """Check the gate again, and look for entries to deliver."""
        self.gate.changed()
        self.wake()

    async def run(self) -> None:
        """Deliver, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            self._woken.clear()
            try:
                if await self._round():
                    await asyncio.sleep(0)  # other tasks run between rounds
                else:
                    await self._woken.wait()
                pause = _FIRST_PAUSE
            except (LedgerError, TopicFormatError) as error:
                self.failures += 1
                _log.warning("subscription %s cannot read its topic and tries again: %s", self._name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _round(self) -> bool:
        """Deliver some entries; return whether there may be more to deliver at once."""
        dispatcher = self._dispatcher
        limit = min(dispatcher.room, _AT_A_TIME)
        if limit <= 0:
            return False
        await self._take_due(limit)
        queued = dispatcher.next_queued(_AT_A_TIME)
        in_order = dispatcher.kind is not SubscriptionType.SHARED
        if chosen := self._admission.choose(queued, are_queued=True, in_order=in_order):
            await self._deliver(chosen[:limit], are_new=False)
            return True
        tracker = self._delaying_tracker
        if not dispatcher.may_read_on or (tracker is not None and tracker.should_pause_all_deliveries()):
            return False
        return await self._read_on(limit, before=queued[0] if queued else None)

    @property
    def _delaying_tracker(self) -> DelayedDeliveryTracker | None:
        """Return the tracker on Shared and Key_Shared; other types delay no message, whatever it holds."""
        return self.tracker if self._dispatcher.kind.is_shared else None

    async def _take_due(self, limit: int) -> None:
        """Queue delayed entries that are due, except for those that were acknowledged before."""
        tracker, moves = self.tracker, self._moves
        if tracker is None or not tracker.has_message_available():
            return
        mark = self._cursor.mark_delete_position
        due = [position for position in tracker.get_scheduled_messages(limit) if position > mark]
        self._dispatcher.queue.due.update(due)
        self._dispatcher.requeue(due)
        for position in due:
            is_acked = await self._cursor.is_acked(position)
            if moves != self._moves:
                return
            if is_acked:
                self._dispatcher.acked(position)

    async def _read_on(self, limit: int, before: Position | None) -> bool:
        """Deliver new entries, up to one that the gate holds; return whether there may be more to deliver at once."""
        moves, start = self._moves, self._read_at
        found, read_at = await self._new_entries(start, limit, before)
        if moves != self._moves:
            return True
        chosen = self._admission.choose(found, are_queued=False)
        if len(chosen) < len(found):  # the entry that the gate holds, and what follows, is read again
            held = next(position for position in found if position not in set(chosen))
            chosen = [position for position in chosen if position < held]
            read_at = held
        self._read_at = read_at
        if chosen:
            await self._deliver(chosen, are_new=True)
        return read_at != start

    async def _new_entries(
        self, start: Position, limit: int, before: Position | None
    ) -> tuple[list[Position], Position]:
        """Return the next new entries from ``start``, and the position after them; nothing is read."""
        found: list[Position] = []
        ledgers, left = self._ledgers, _LOOK_AHEAD
        ledger, entry = start
        while len(found) < limit and left > 0 and (before is None or (ledger, entry) < before):
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
                if len(found) >= limit:
                    entry = each + 1
                    break
        return found, Position(ledger, entry)

    def _is_new(self, ledger: int, entry: int) -> bool:
        dispatcher, position = self._dispatcher, Position(ledger, entry)
        if position in dispatcher.in_flight or position in dispatcher.queue:
            return False
        tracker = self._delaying_tracker
        return tracker is None or not tracker.contains_message(ledger, entry)

    async def _deliver(self, positions: Sequence[Position], *, are_new: bool) -> None:
        """Read entries, neighbours in one go, and send them, up to one that cannot be read."""
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
                    longest = 1  # send those before the one that cannot be read
                    continue
                for entry in entries:
                    if moves == self._moves:
                        await self._send(left[0], entry, refused, is_new=are_new, moves=moves)
                    if moves != self._moves:
                        return
                    del left[0]
        except LogNotFoundError:
            if left[0] > self._cursor.mark_delete_position:
                raise  # otherwise its ledger was deleted after all of it was acknowledged
        finally:
            if left and moves == self._moves:
                self._requeue(left)

    def _requeue(self, positions: Sequence[Position]) -> None:
        """Queue entries that were not sent, and forget those that are acknowledged."""
        mark = self._cursor.mark_delete_position
        for position in positions:
            if position <= mark:
                self._dispatcher.acked(position)
        self._dispatcher.requeue([position for position in positions if position > mark])

    async def _send(self, position: Position, entry: Entry, refused: set[int], *, is_new: bool, moves: int) -> None:
        """Send an entry to the consumer that gets it, or queue it.

        :param refused: keys of which a lower entry was queued: they must not be overtaken
        """
        dispatcher = self._dispatcher
        is_acked, batch = await self._state_of(position, entry)
        if moves != self._moves or position in dispatcher.in_flight:
            return
        if is_acked:
            dispatcher.acked(position)
            return
        if self._delays(position, entry):
            dispatcher.queue.discard(position)
            return
        key = entry.key_hash if dispatcher.kind is SubscriptionType.KEY_SHARED else NO_KEY
        info = EntryInfo(key, entry.batch_size)
        number = dispatcher.choose(position, key, refused)
        if number is None or not self._admission.lets_pass(position, entry.batch_size, is_queued=not is_new):
            dispatcher.queue.add(position, info)
            refused.add(key)
            return
        left = (1 << len(entry.messages)) - 1 if batch is None else batch.unacked
        count = dispatcher.sent(position, number, left, info)
        indexes = range(len(entry.messages)) if batch is None else batch
        self.inboxes[number].take(deliveries_of(self._topic, position, entry, indexes, count))

    async def _state_of(self, position: Position, entry: Entry) -> tuple[bool, BatchSet | None]:
        """Return whether an entry is acknowledged, and which messages of its batch are not, both at the same moment."""
        while True:
            parts = self._dispatcher.parts_acked
            batch = await self._cursor.batch_set(position) if entry.is_batch else None
            is_acked = await self._cursor.is_acked(position)
            if parts == self._dispatcher.parts_acked:
                return is_acked, batch

    def _delays(self, position: Position, entry: Entry) -> bool:
        tracker = self._delaying_tracker
        if entry.deliver_at_ms is None or tracker is None or position in self._dispatcher.queue.due:
            return False
        return tracker.add_message(position.ledger, position.entry, entry.deliver_at_ms)


class AdmissionControl:
    """Which entries of a subscription the gate admits (PIP-299).

    It is asked before entries are read, when the size of a batch is known only if it was read before, and again for a
    batch that was just read. If the gate holds the batch then, its size is known, so it is read again only to be sent.

    :param dispatcher: has the entries in flight, which are reserved for, and the queue
    :param config: how large the acknowledgement state may grow, and whether delayed messages that are due wait too
    """

    def __init__(self, cursor: Cursor, dispatcher: Dispatcher, config: TopicConfig, name: str, clock: Clock) -> None:
        reserve = Reserve(cursor.acked_entries)
        self._cursor = cursor
        self._queue = dispatcher.queue
        self.gate = DispatchGate(
            config.cursor.max_per_cursor_metadata_size_in_bytes,
            lambda: cursor.metadata_size_bytes,
            lambda: reserve.bytes,
            hold_due_delayed=config.hold_due_delayed,
            name=name,
            clock=clock,
        )
        if self.gate.is_on:
            dispatcher.reserve = reserve

    def choose(self, positions: Iterable[Position], *, are_queued: bool, in_order: bool = False) -> list[Position]:
        """Return which of these entries may be sent, lowest first.

        :param are_queued: whether they are queued; otherwise they are new
        :param in_order: whether an entry that is held also holds those that follow of its key, or all if its key is not
            known
        """
        if not self.gate.is_on:
            return list(positions)
        admitted: list[Position] = []
        held_keys: set[int] = set()
        holds_all = False
        for position in positions:
            info = self._queue.info(position) if are_queued else None
            is_late = info is None and position in self._queue.due  # its place in the order of its key is not known
            is_behind = holds_all or (info is not None and info.key_hash in held_keys)
            if in_order and is_behind and not is_late:
                continue
            if self._may_go(position, 0 if info is None else info.batch_size, len(admitted), is_queued=are_queued):
                admitted.append(position)
            elif info is not None:
                held_keys.add(info.key_hash)
            elif not is_late:
                holds_all = True
        return admitted

    def lets_pass(self, position: Position, batch_size: int, *, is_queued: bool) -> bool:
        """Return whether an entry may be sent, now that it was read."""
        if batch_size <= 1 or not self.gate.is_on or self._may_go(position, batch_size, 0, is_queued=is_queued):
            return True
        if not is_queued:
            self._queue.still_new.add(position)
        return False

    def _may_go(self, position: Position, size: int, before: int, *, is_queued: bool) -> bool:
        """Ask the gate, after ``before`` entries that may be sent and are not in flight yet."""
        gate, growth = self.gate, worst_growth(size)
        is_below = position < self._cursor.highest_acked
        is_lowest = position == self._cursor.next_position
        is_free = is_lowest or (size <= 1 and not self._cursor.adds_range(position))
        if position in self._queue.due:
            if gate.admit_due(before + 1, is_below=is_below, growth=growth) > before:
                return True
            is_free = is_free if is_below else is_lowest
            return is_free and gate.admit_due(1, is_below=is_below, adds_range=False, growth=growth) > 0
        if is_below or (is_queued and position not in self._queue.still_new):
            return is_free or gate.admit_old(before + 1, growth=growth) > before
        return gate.admit_new(before + 1, growth=growth) > before or is_lowest


def _after(position: Position) -> Position:
    return Position(position.ledger, position.entry + 1)
