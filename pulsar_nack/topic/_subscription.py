"""A subscription of a local topic: one task that reads what is to be delivered, and hands it to consumers.

The task looks, in this order, for what came due, what has to be sent again, and what is new; asks the gate how much of
it may go out; reads that, and nothing else, from storage; and gives it to those whom the dispatcher names. When there
is nothing to do it waits for :meth:`Subscription.look`, which everything calls that changes something. It forgets to
look only before it looks, so no call is lost.

Nothing is lost by an error or a cancellation: what was chosen and could not be sent is put back to be sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from ..clock import Clock
from ..consumer import Delivery
from ..cursor import BatchSet, Cursor, DispatchGate, Reserve
from ..delayed import DelayedDeliveryTracker
from ..errors import InvalidArgumentError, LedgerError, TopicFormatError
from ..ids import MessageId, Position
from ._deliveries import deliveries_of
from ._dispatcher import Dispatcher, SubscriptionType
from ._entry import NO_KEY, Entry, decode_entry
from ._ledgers import TopicLedgers

_AT_A_TIME: Final = 100
_LOOK_AHEAD: Final = 5_000
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_log = logging.getLogger("pulsar_nack.topic")


class Receiver(Protocol):
    """The consumer's side of a subscription."""

    def joined(self, number: int) -> None:
        """Take the number that the subscription knows it by."""

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Take messages."""

    def fail(self, error: BaseException) -> None:
        """Let whoever receives know that nothing comes any more."""

    def give_back(self, positions: Iterable[Position]) -> int:
        """Drop what was taken of these entries and not received yet; return how many messages that is."""


class Subscription:
    """One subscription, whoever consumes it; made by :class:`~pulsar_nack.LocalTopic`."""

    def __init__(
        self,
        name: str,
        topic: str,
        ledgers: TopicLedgers,
        cursor: Cursor,
        clock: Clock,
        *,
        limit: int,
        trimmed: Callable[[], None],
        delayed: object = None,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.tracker: DelayedDeliveryTracker | None = None
        self.delayed = delayed
        """How delayed messages are kept."""
        self._topic = topic
        self._ledgers = ledgers
        self._clock = clock
        self._trimmed = trimmed
        self._dispatcher = Dispatcher(SubscriptionType.SHARED)
        self._receivers: dict[int, Receiver] = {}
        self._reserve = Reserve(cursor.acked_entries)
        self.gate = DispatchGate(
            limit, lambda: cursor.metadata_size_bytes, lambda: self._reserve.bytes, name=name, clock=clock
        )
        self._due: set[Position] = set()
        self._read_at = cursor.mark_delete_position
        self._read_at = Position(self._read_at.ledger, self._read_at.entry + 1)
        self._turn = 0
        self._wake = asyncio.Event()
        self._moves = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def backlog(self) -> int:
        """Return how many entries are not acknowledged as a whole."""
        return self.cursor.backlog or 0

    @property
    def is_idle(self) -> bool:
        """Return whether nobody consumes it."""
        return not self._receivers

    @property
    def type(self) -> SubscriptionType:
        """Return how its consumers share the messages."""
        return self._dispatcher.kind

    def look(self) -> None:
        """Something has changed: there may be something to deliver."""
        self._wake.set()

    def use(self, tracker: DelayedDeliveryTracker) -> None:
        """Take the tracker of delayed messages, and begin."""
        self.tracker = tracker
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"pulsar_nack.topic {self.name}")
        self._task.add_done_callback(self._ended)

    async def end(self) -> None:
        """End the task, and close the tracker; consumers were closed before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.tracker is not None:
            await self.tracker.aclose()

    async def aclose(self) -> None:
        """Do what :meth:`end` does, and close the cursor."""
        await self.end()
        await self.cursor.aclose()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for receiver in list(self._receivers.values()):
                receiver.fail(error)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(
        self, receiver: Receiver, name: str, *, room: int, unacked_limit: int | None, kind: SubscriptionType
    ) -> None:
        """Take a consumer in.

        :raises BrokerError: those that are there exclude it
        """
        number = self._turn
        self._dispatcher.join(number, name, room=room, unacked_limit=unacked_limit, kind=kind)
        self._turn += 1
        self._receivers[number] = receiver
        receiver.joined(number)
        self.look()

    def leave(self, number: int) -> None:
        """Let a consumer go; what it has not acknowledged goes to the others at once."""
        for position in self._dispatcher.held_by(number):
            self._reserve.discard(position)
        self._dispatcher.leave(number)
        del self._receivers[number]
        self._changed()

    def received(self, number: int) -> None:
        """Note that a consumer has received a message."""
        had_room = self._dispatcher.room > 0
        self._dispatcher.take_room(number, -1)
        if not had_room or self._dispatcher.room % _AT_A_TIME == 0:
            self.look()

    def redeliver(self, number: int, positions: Iterable[Position]) -> None:
        """Send entries again that a consumer holds; on Exclusive and Failover subscriptions all that it holds."""
        self._take_back(self._dispatcher.redeliver(number, positions), number)
        self._changed()

    def _take_back(self, positions: list[Position], *numbers: int) -> None:
        for position in positions:
            self._reserve.discard(position)
        for number in numbers:
            if (dropped := self._receivers[number].give_back(positions)) > 0:
                self._dispatcher.take_room(number, -dropped)

    def _changed(self) -> None:
        self._dispatcher.something_changed()
        self.gate.changed()
        self.look()

    # -- acknowledging -------------------------------------------------------------------------------------------------

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages.

        :raises InvalidArgumentError: one of them cannot exist; none was acknowledged
        """
        positions, batch_sets = await self._sorted_out(ids)
        before = self.cursor.mark_delete_position.ledger
        await self.cursor.acknowledge(list(positions), batch_sets=batch_sets or None)
        for position in positions:
            await self._note_acked(position)
        self._after_acks(before)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, itself included."""
        position = Position(*message_id[:2])
        before = self.cursor.mark_delete_position.ledger
        left = None
        if message_id.batch_index >= 0:
            size = await self._batch_size(message_id)
            left = BatchSet.through(size, message_id.batch_index)
        await self.cursor.acknowledge_cumulative(position, batch_set=left)
        mark = self.cursor.mark_delete_position
        for held in [each for each in self._dispatcher.in_flight if each <= mark]:
            self._done_with(held)
        if position > mark:
            await self._note_acked(position)
        self._after_acks(before)

    async def _sorted_out(self, ids: Sequence[MessageId]) -> tuple[set[Position], dict[tuple[int, int], BatchSet]]:
        positions: set[Position] = set()
        batch_sets: dict[tuple[int, int], BatchSet] = {}
        whole: set[Position] = set()
        for message_id in ids:
            position = Position(*message_id[:2])
            positions.add(position)
            if message_id.batch_index < 0:
                whole.add(position)
                continue
            size = await self._batch_size(message_id)
            one = BatchSet.acked(size, [message_id.batch_index])
            known = batch_sets.get(position)
            batch_sets[position] = one if known is None else known.merge(one)
        return positions, {position: left for position, left in batch_sets.items() if position not in whole}

    async def _batch_size(self, message_id: MessageId) -> int:
        if message_id.batch_size > message_id.batch_index:
            return message_id.batch_size
        known = self._ledgers.entries(message_id.ledger)
        if known is None or message_id.entry >= known:
            raise InvalidArgumentError("id", message_id, "a message of this topic")
        return (await self._read_one(Position(message_id.ledger, message_id.entry))).batch_size

    async def _note_acked(self, position: Position) -> None:
        if await self.cursor.is_acked(position):
            self._done_with(position)
        elif (left := await self.cursor.batch_set(position)) is not None:
            self._dispatcher.acked_in_part(position, left.unacked.bit_count())

    def _done_with(self, position: Position) -> None:
        self._dispatcher.acked(position)
        self._reserve.discard(position)
        self._due.discard(position)

    def _after_acks(self, ledger_before: int) -> None:
        if self.cursor.mark_delete_position.ledger != ledger_before:
            self._trimmed()
        self._changed()

    # -- moving --------------------------------------------------------------------------------------------------------

    async def seek(self, target: Position) -> None:
        """Make this the next entry: what is before it counts as acknowledged, nothing from it on.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        await self.cursor.reset(target)
        await self._moved()

    async def seek_to(self, position: MessageId | int) -> None:
        """Make this message, or the first that was published at or after this time (epoch ms), the next one.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        if isinstance(position, MessageId):
            await self.seek(Position(*position[:2]))
        elif type(position) is int and position >= 0:
            await self.seek(await self._first_published(position))
        else:
            raise InvalidArgumentError("position", position, "a MessageId, or a publish time in epoch ms")

    async def _first_published(self, since_ms: int) -> Position:
        """Find the first entry that was published then or later; publish times do not fall from one to the next."""
        ledgers = self._ledgers
        for ledger in list(ledgers.ids):
            low, high = 0, ledgers.entries(ledger) or 0
            if not high or (await self._read_one(Position(ledger, high - 1))).publish_time_ms < since_ms:
                continue
            while low < high:
                middle = (low + high) // 2
                if (await self._read_one(Position(ledger, middle))).publish_time_ms < since_ms:
                    low = middle + 1
                else:
                    high = middle
            return Position(ledger, low)
        last = ledgers.last_position
        return Position(last.ledger, last.entry + 1)

    async def skip(self, count: int) -> int:
        """Acknowledge the next entries that are not; return how many that were."""
        last, skipped = None, 0
        ledger: int | None = self.cursor.mark_delete_position.ledger
        while ledger is not None and skipped < count:
            for first, end in await self.cursor.unacked(ledger, 0, (self._ledgers.entries(ledger) or 0) - 1):
                many = min(end - first + 1, count - skipped)
                if many:
                    last, skipped = Position(ledger, first + many - 1), skipped + many
            ledger = self._ledgers.next_ledger(ledger)
        if last is not None:
            await self._skip_to(last)
        return skipped

    async def clear_backlog(self) -> None:
        """Acknowledge everything that there is."""
        if self.backlog:
            await self._skip_to(self._ledgers.last_position)
        if self.tracker is not None:
            await self.tracker.clear()

    async def _skip_to(self, last: Position) -> None:
        before = self.cursor.mark_delete_position.ledger
        if last.entry < 0:
            previous = self._ledgers.previous_ledger(last.ledger)
            assert previous is not None
            last = Position(previous, (self._ledgers.entries(previous) or 0) - 1)
        await self.cursor.acknowledge_cumulative(last)
        released = [position for position in self._dispatcher.in_flight if position <= last]
        self._take_back(released, *self._receivers)
        self._dispatcher.forget(last)
        self._due = {position for position in self._due if position > last}
        self.gate.reset()
        self._after_acks(before)

    async def _moved(self) -> None:
        self._moves += 1
        self._take_back(list(self._dispatcher.in_flight), *self._receivers)
        self._dispatcher.forget()
        self._reserve.clear()
        self._due.clear()
        mark = self.cursor.mark_delete_position
        self._read_at = Position(mark.ledger, mark.entry + 1)
        if self.tracker is not None:
            await self.tracker.clear()
        self.gate.reset()
        self._changed()

    # -- delivering ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._wake.clear()
            try:
                if not await self._round():
                    await self._wake.wait()
                pause = _FIRST_PAUSE
            except (LedgerError, TopicFormatError) as error:
                _log.warning("subscription %s cannot read its topic, and tries again: %s", self.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _round(self) -> bool:
        """Deliver some entries; return whether there may be more to do at once."""
        dispatcher = self._dispatcher
        if dispatcher.room <= 0:
            return False
        most = min(dispatcher.room, _AT_A_TIME)
        self._take_due(most)
        again = dispatcher.to_send_again(_AT_A_TIME)
        if again and (chosen := self._admitted(again)):
            return await self._deliver(chosen[:most])
        if not dispatcher.may_read_on or (self.tracker is not None and self.tracker.should_pause_all_deliveries()):
            return False
        moves = self._moves
        found = await self._new_entries(most)
        if moves != self._moves:
            return True
        chosen = self._admitted(found)
        if len(chosen) < len(found):  # what is not read now is looked at again
            rest = set(found).difference(chosen)
            self._read_at = min(rest)
            chosen = [position for position in chosen if position < self._read_at]
        return bool(chosen) and await self._deliver(chosen)

    def _take_due(self, most: int) -> None:
        tracker = self.tracker
        if tracker is None or not tracker.has_message_available():
            return
        due = [each for each in tracker.get_scheduled_messages(most) if self._ledgers.entries(each.ledger) is not None]
        self._due.update(due)
        self._dispatcher.add_again(due)

    def _admitted(self, positions: Sequence[Position]) -> list[Position]:
        """Return which of these the gate lets pass, lowest first."""
        gate = self.gate
        if not gate.is_on:
            return list(positions)
        highest = self.cursor.highest_acked
        admitted: list[Position] = []
        room_for_old = gate.admit_old(len(positions))
        for position in positions:
            adds_range = self.cursor.adds_range(position)
            if position in self._due:
                may_go = self._admits_due(position, len(admitted))
            elif position < highest or self._dispatcher.is_to_send_again(position):
                may_go = room_for_old > 0 or not adds_range
                room_for_old -= 1
            else:
                is_lowest = not admitted and not self._dispatcher.in_flight and not adds_range
                may_go = gate.admit_new(len(admitted) + 1, adds_range=not is_lowest) > len(admitted)
            if may_go:
                admitted.append(position)
        return admitted

    def _admits_due(self, position: Position, before: int) -> bool:
        """Return whether the gate lets a message that came due pass, after some others that are not counted yet."""
        is_below = position < self.cursor.highest_acked
        if self.gate.admit_due(before + 1, is_below=is_below) > before:
            return True
        is_free = not self.cursor.adds_range(position) if is_below else position == self.cursor.next_position
        return is_free and self.gate.admit_due(1, is_below=is_below, adds_range=False) > 0

    async def _new_entries(self, most: int) -> list[Position]:
        """Return the next entries that nobody got yet, and step behind them; nothing is read for that."""
        found: list[Position] = []
        looked = 0
        ledgers, tracker, held = self._ledgers, self.tracker, self._dispatcher.in_flight
        ledger, entry = self._read_at
        while len(found) < most and looked < _LOOK_AHEAD:
            entries = ledgers.entries(ledger)
            if entries is None or entry >= entries:
                following = ledgers.next_ledger(ledger)
                if following is None:
                    break
                ledger, entry = following, 0
                continue
            end = min(entries, entry + _LOOK_AHEAD - looked)
            for first, last in await self.cursor.unacked(ledger, entry, end - 1):
                for each in range(first, last + 1):
                    position = Position(ledger, each)
                    is_held = tracker is not None and tracker.contains_message(ledger, each)
                    if is_held or position in held or self._dispatcher.is_to_send_again(position):
                        continue
                    found.append(position)
                    if len(found) >= most:
                        break
                if len(found) >= most:
                    break
            looked += end - entry
            entry = found[-1].entry + 1 if len(found) >= most else end
        self._read_at = Position(ledger, entry)
        return found

    async def _deliver(self, positions: Sequence[Position]) -> bool:
        """Read entries, those next to each other in one go, and send them."""
        moves, left = self._moves, list(positions)
        blocked = set() if self._dispatcher.kind is SubscriptionType.SHARED else set(self._dispatcher.stuck_keys)
        try:
            while left:
                run = 1
                while run < len(left) and left[run] == (left[0].ledger, left[0].entry + run):
                    run += 1
                records = await self._ledgers.read(left[0].ledger, left[0].entry, left[run - 1].entry)
                if moves != self._moves:
                    return True
                for record in records:
                    if moves != self._moves:
                        return True
                    await self._send(left[0], decode_entry(record), blocked)
                    if moves != self._moves:
                        return True
                    del left[0]
        finally:
            if left and moves == self._moves:
                self._dispatcher.add_again(left)
        return True

    async def _send(self, position: Position, entry: Entry, blocked: set[int]) -> None:
        """Send an entry to whom it is for; what has a key in ``blocked`` must not overtake what could not be sent."""
        dispatcher = self._dispatcher
        batch = await self.cursor.batch_set(position)
        if position in dispatcher.in_flight:
            return
        if await self.cursor.is_acked(position):
            self._done_with(position)
            return
        if self._holds_back(position, entry):
            dispatcher.held_back(position)
            return
        indexes = list(batch) if batch is not None else list(range(len(entry.messages)))
        key = entry.key_hash if dispatcher.kind is SubscriptionType.KEY_SHARED else NO_KEY
        number = None if key in blocked else dispatcher.choose(key)
        if number is None:
            dispatcher.stuck(position, key)
            if dispatcher.kind is not SubscriptionType.SHARED:
                blocked.add(key)
            return
        count = dispatcher.sent(position, number, len(indexes), key)
        self._due.discard(position)
        if self.gate.is_on:
            self._reserve.add(position, entry.batch_size)
        self._receivers[number].take(deliveries_of(self._topic, position, entry, indexes, count))

    def _holds_back(self, position: Position, entry: Entry) -> bool:
        if entry.deliver_at_ms is None or self.tracker is None or not self._dispatcher.kind.is_shared:
            return False
        if position in self._due:
            return False
        return self.tracker.add_message(position.ledger, position.entry, entry.deliver_at_ms)

    async def _read_one(self, position: Position) -> Entry:
        return decode_entry((await self._ledgers.read(position.ledger, position.entry, position.entry))[0])
