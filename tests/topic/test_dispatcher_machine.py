"""The dispatcher against a simple model: nothing is lost or sent twice, keys stay in order, counts are right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pulsar_nack.ids import Position
from pulsar_nack.topic._dispatch_queue import EntryInfo
from pulsar_nack.topic._dispatcher import Dispatcher, SubscriptionType
from pulsar_nack.topic._entry import NO_KEY
from tests.tiers import examples

ENTRIES = st.tuples(st.sampled_from([3, 20_000, 40_000, 65_000]), st.integers(1, 3))
"""Hashes of keys, and sizes of batches."""


@dataclass
class Entry:
    """What the model knows of an entry: its key, its consumer, and its unacknowledged messages, as bits."""

    key: int
    size: int
    left: int = field(init=False)
    holder: int | None = None
    count: int = 0

    def __post_init__(self) -> None:
        """Set all messages as unacknowledged."""
        self.left = (1 << self.size) - 1


class DispatcherMachine(RuleBasedStateMachine):
    """Does to a dispatcher what a topic may do, and delivers as its task does, without storage and gate."""

    kind = SubscriptionType.SHARED

    @initialize(rooms=st.lists(st.integers(1, 6), min_size=1, max_size=3), entries=st.lists(ENTRIES, max_size=12))
    def begin(self, rooms: list[int], entries: list[tuple[int, int]]) -> None:
        """Begin with some consumers and entries."""
        self.dispatcher = Dispatcher(self.kind)
        self.entries: dict[Position, Entry] = {}
        self.acked: set[Position] = set()
        self.read_at = 0
        self.rooms: dict[int, int] = {}
        self.queued: dict[int, int] = {}
        self.limits: dict[int, int | None] = {}
        self.next_number = 0
        for room in rooms:
            self.join(room, None, "b")
        self.publish(entries)
        self.deliver(8, 255)

    # -- what the model and the dispatcher agree on --------------------------------------------------------------------

    def key_of(self, position: Position) -> int:
        """Return the key as the dispatcher gets it."""
        return self.entries[position].key if self.kind is SubscriptionType.KEY_SHARED else NO_KEY

    def must_stay_in_order(self, one: Position, other: Position) -> bool:
        """Return whether the subscription's type keeps these in order."""
        return self.kind is not SubscriptionType.SHARED and self.key_of(one) == self.key_of(other)

    def open_positions(self) -> list[Position]:
        """Return the unacknowledged positions."""
        return [position for position in sorted(self.entries) if position not in self.acked]

    @invariant()
    def agrees(self) -> None:
        """Both sides agree who has which entries in flight, and how many messages those are."""
        if not hasattr(self, "dispatcher"):
            return
        held = {position: entry.holder for position, entry in self.entries.items() if entry.holder is not None}
        assert {position: each.consumer for position, each in self.dispatcher.in_flight.items()} == held
        for number in self.rooms:
            mine = [position for position, holder in held.items() if holder == number]
            assert sorted(self.dispatcher._consumers[number].held) == sorted(mine)
            assert self.dispatcher._consumers[number].unacked == sum(
                self.entries[each].left.bit_count() for each in mine
            )

    # -- consumers -----------------------------------------------------------------------------------------------------

    @rule(room=st.integers(1, 6), limit=st.none() | st.integers(1, 6), name=st.sampled_from("abc"))
    def join(self, room: int, limit: int | None, name: str) -> None:
        """A consumer joins, if it may; a lower name takes a Failover subscription over, with all in flight."""
        if self.kind is SubscriptionType.EXCLUSIVE and self.rooms:
            return
        before, number = self.dispatcher.active, self.next_number
        self.next_number += 1
        self.dispatcher.join(number, name, room=room, unacked_limit=limit, kind=self.kind)
        self.rooms[number], self.queued[number], self.limits[number] = room, 0, limit
        if not self.kind.is_shared and before is not None and self.dispatcher.active != before:
            self.came_back(self.dispatcher.rewind())

    @precondition(lambda self: self.rooms)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A consumer leaves; the last one takes the counts with it."""
        number = data.draw(st.sampled_from(sorted(self.rooms)))
        self.dispatcher.leave(number)
        for table in (self.rooms, self.queued, self.limits):
            del table[number]
        self.came_back([position for position, entry in self.entries.items() if entry.holder == number])
        if not self.rooms:
            for entry in self.entries.values():
                entry.count = 0

    def came_back(self, positions: list[Position]) -> None:
        """Note that these are no longer in flight."""
        for position in positions:
            self.entries[position].holder = None

    # -- entries -------------------------------------------------------------------------------------------------------

    @rule(entries=st.lists(ENTRIES, min_size=1, max_size=6))
    def publish(self, entries: list[tuple[int, int]]) -> None:
        """Entries are added at the end of the topic."""
        for key, size in entries:
            self.entries[Position(1, len(self.entries))] = Entry(key, size)

    @rule(most=st.integers(1, 8), gate=st.integers(0, 255))
    def deliver(self, most: int, gate: int = 255) -> None:
        """Do a round as the task does: first waiting entries, of which the gate may hold some, then new ones."""
        if self.dispatcher.room <= 0:
            return
        again = self.dispatcher.next_queued(most)
        assert again == sorted(again)
        if again:
            again = [position for at, position in enumerate(again) if gate >> at & 1]
            if not again:
                return
        if not again:
            new = [position for position in self.open_positions() if position.entry >= self.read_at][:most]
            self.read_at = new[-1].entry + 1 if new else self.read_at
            again = new
        refused: set[int] = set()
        for position in again:
            self.send(position, refused)

    def send(self, position: Position, refused: set[int]) -> None:
        """Send one entry, or let it wait."""
        entry, key = self.entries[position], self.key_of(position)
        known = EntryInfo(key, entry.size if entry.size > 1 else 0)
        number = self.dispatcher.choose(position, key, refused)
        if number is None:
            self.dispatcher.queue.add(position, known)
            refused.add(key)
            return
        assert entry.holder is None
        assert position not in self.acked
        assert self.rooms[number] > self.queued[number]
        limit = self.limits[number]
        assert limit is None or self.dispatcher._consumers[number].unacked < limit
        for lower in self.open_positions():
            if lower < position and self.must_stay_in_order(lower, position):
                assert self.entries[lower].holder == number, f"{position} overtakes {lower}"
        assert self.dispatcher.sent(position, number, entry.left, known) == entry.count
        entry.holder = number
        self.queued[number] += entry.left.bit_count()

    @precondition(lambda self: any(self.queued.values()))
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        """A consumer takes some messages from its queue."""
        number = data.draw(st.sampled_from(sorted(each for each, queued in self.queued.items() if queued)))
        taken = data.draw(st.integers(1, self.queued[number]))
        for _ in range(taken):
            self.dispatcher.take_room(number, -1)
        self.queued[number] -= taken

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """An entry is acknowledged as a whole, whether it is in flight or not."""
        position = data.draw(st.sampled_from(sorted(self.entries)))
        self.dispatcher.acked(position)
        self.done(position)

    @precondition(lambda self: self.dispatcher.in_flight)
    @rule(data=st.data())
    def acknowledge_in_part(self, data: st.DataObject) -> None:
        """Some messages of an entry in flight are acknowledged; the last of them completes it."""
        position = data.draw(st.sampled_from(sorted(self.dispatcher.in_flight)))
        entry = self.entries[position]
        left = data.draw(st.integers(0, (1 << entry.size) - 1))
        is_done = self.dispatcher.acked_in_part(position, left)
        entry.left &= left
        assert is_done == (not entry.left)
        if is_done:
            self.dispatcher.acked(position)
            self.done(position)

    def done(self, position: Position) -> None:
        """Note that an entry is acknowledged."""
        self.acked.add(position)
        self.entries[position].holder = None

    @precondition(lambda self: self.rooms and self.entries)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        """A consumer requests entries: those that it has in flight, or all of them if it gets all."""
        number = data.draw(st.sampled_from(sorted(self.rooms)))
        asked = data.draw(st.lists(st.sampled_from(sorted(self.entries)), min_size=1, max_size=4))
        released = self.dispatcher.redeliver(number, asked)
        held = {position for position, entry in self.entries.items() if entry.holder is not None}
        if self.kind.is_shared:
            assert set(released) == {each for each in asked if self.entries[each].holder == number}
            for position in released:
                self.entries[position].count += 1
        else:
            assert set(released) == (held if number == self.dispatcher.active else set())
        self.came_back(released)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        """Everything up to an entry is acknowledged."""
        last = data.draw(st.sampled_from(sorted(self.entries)))
        self.dispatcher.forget(last)
        for position in self.entries:
            if position <= last:
                self.done(position)

    @rule()
    def seek_to_the_lowest(self) -> None:
        """The subscription is rewound to the lowest unacknowledged entry."""
        self.dispatcher.forget()
        self.came_back(list(self.entries))
        for entry in self.entries.values():
            entry.count = 0
        self.read_at = 0

    def teardown(self) -> None:
        """A consumer with room for everything gets all unacknowledged messages: nothing was lost."""
        if not hasattr(self, "dispatcher"):
            return
        for number in list(self.rooms):
            self.dispatcher.leave(number)
            self.came_back([position for position, entry in self.entries.items() if entry.holder == number])
        for entry in self.entries.values():
            entry.count = 0
        self.rooms, self.queued, self.limits = {9_999: 100_000}, {9_999: 0}, {9_999: None}
        self.dispatcher.join(9_999, "last", room=100_000, unacked_limit=None, kind=self.kind)
        for _ in range(2 * len(self.entries) + 2):
            self.deliver(8)
        assert sorted(self.dispatcher.in_flight) == self.open_positions()


_SETTINGS = examples(80, 50)


def machine_of(subscription_type: SubscriptionType) -> type[DispatcherMachine]:
    """Return the machine of one type."""
    return type(f"Machine{subscription_type.name}", (DispatcherMachine,), {"kind": subscription_type})


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_dispatcher(kind: SubscriptionType) -> None:
    """For any operations in any order, dispatcher and model agree; see the rules above."""
    run_state_machine_as_test(machine_of(kind), settings=_SETTINGS)
