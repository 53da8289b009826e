"""The dispatcher, case by case; :mod:`.test_dispatcher_machine` covers all operations in any order."""

from __future__ import annotations

from typing import NoReturn

import pytest

from pulsar_nack import BrokerError
from pulsar_nack.ids import Position
from pulsar_nack.topic._dispatch_queue import EntryInfo
from pulsar_nack.topic._dispatcher import Dispatcher, HeldEntry, SubscriptionType, key_ring, owner_on
from pulsar_nack.topic._entry import Entry, EntryCache, EntryMessage

A, B, C, D = (Position(1, entry) for entry in range(4))
KEY = EntryInfo(7, 0)


def dispatcher(kind: SubscriptionType, *rooms: int, limit: int | None = None) -> Dispatcher:
    """Return a dispatcher whose consumers have queues of these sizes, with numbers from 0."""
    made = Dispatcher(kind)
    for number, room in enumerate(rooms):
        made.join(number, "name", room=room, unacked_limit=limit, kind=kind)
    return made


def test_a_key_waits_for_what_the_gate_holds() -> None:
    """An entry does not overtake a lower waiting one of its key, whatever that waits for; other keys do."""
    it = dispatcher(SubscriptionType.KEY_SHARED, 10)
    it.queue.add(A, KEY)
    assert it.choose(B, 7) is None
    assert it.choose(B, 8) == 0
    assert it.choose(A, 7) == 0
    it.sent(A, 0, 1, KEY)
    assert it.choose(B, 7) == 0


def test_a_key_stays_with_its_holder() -> None:
    """A key moves to another consumer only when none of its entries is in flight, also when consumers join."""
    it = dispatcher(SubscriptionType.KEY_SHARED, 10)
    it.sent(A, 0, 1, KEY)
    for number in range(1, 20):
        it.join(number, f"n{number}", room=10, unacked_limit=None, kind=SubscriptionType.KEY_SHARED)
    assert it.choose(B, 7) == 0
    it.acked(A)
    assert it.choose(B, 7) not in {0, None}


class _NotListed(dict[Position, HeldEntry]):
    """Entries that can be looked up, but not listed."""

    def __iter__(self) -> NoReturn:
        raise AssertionError

    keys = values = items = __iter__


def test_leaving_looks_at_the_own_entries_only() -> None:
    """The time for a closing consumer depends on its own entries in flight, not on those of others."""
    it = dispatcher(SubscriptionType.SHARED, 10, 10)
    for position, number in ((A, 0), (B, 1), (C, 1), (D, 0)):
        it.sent(position, number, 1, EntryInfo())
    it.acked(D)
    it.in_flight = _NotListed(it.in_flight)
    it.leave(0)
    assert len(it.in_flight) == 2
    assert it.next_queued(9) == [A]


def test_a_full_consumer_waits_for_half_its_room() -> None:
    """A consumer whose queue was full gets more when half of it was received, not entry by entry."""
    it = dispatcher(SubscriptionType.SHARED, 4)
    for position in (A, B, C, D):
        assert it.choose(position, -1) == 0
        it.sent(position, 0, 1, EntryInfo())
    assert (it.room, it.choose(Position(1, 9), -1)) == (0, None)
    assert not it.take_room(0, -1)
    assert it.room == 0
    assert it.take_room(0, -1)
    assert it.room == 2


def test_a_batch_may_be_larger_than_the_room() -> None:
    """A batch larger than the free queue is sent whole; its consumer gets nothing until there is room again."""
    it = dispatcher(SubscriptionType.SHARED, 2)
    it.sent(A, 0, 0b11111, EntryInfo(-1, 5))
    assert it._consumers[0].unacked == 5
    for _ in range(3):
        assert not it.take_room(0, -1)
    assert it.take_room(0, -1)


def test_the_limit_of_unacknowledged_messages() -> None:
    """A consumer at its limit gets nothing, others get its share; acknowledging a part of a batch counts."""
    it = dispatcher(SubscriptionType.SHARED, 10, limit=3)
    it.sent(A, 0, 0b111, EntryInfo(-1, 3))
    assert it.choose(B, -1) is None
    it.join(1, "other", room=10, unacked_limit=3, kind=SubscriptionType.SHARED)
    assert it.choose(B, -1) == 1
    assert not it.acked_in_part(A, 0b110)
    assert (it._consumers[0].unacked, it.choose(C, -1)) == (2, 0)
    assert it.acked_in_part(A, 0b001)
    assert not it.acked_in_part(B, 0)


def test_who_is_refused() -> None:
    """An Exclusive subscription has one consumer, and no subscription has consumers of two types at once."""
    for kind in SubscriptionType:
        it = dispatcher(kind, 1)
        for other in SubscriptionType:
            if kind is other and kind is not SubscriptionType.EXCLUSIVE:
                continue
            with pytest.raises(BrokerError, match=kind.value):
                it.join(1, "b", room=1, unacked_limit=None, kind=other)
        assert list(it._consumers) == [0]
        it.leave(0)
        it.join(2, "c", room=1, unacked_limit=None, kind=SubscriptionType.SHARED)


def test_keys_are_spread_and_few_move() -> None:
    """Each consumer has a fair share of the keys; a new one takes from the others and moves none among them."""
    assert owner_on([], 5) is None
    ring, larger = (key_ring((number, "s") for number in range(count)) for count in (4, 5))
    owners = [owner_on(ring, each) for each in range(65_536)]
    for number in range(4):
        assert 0.4 < 4 * owners.count(number) / 65_536 < 2
    moved = [(one, other) for each, one in enumerate(owners) if (other := owner_on(larger, each)) != one]
    assert {other for _, other in moved} == {4}


def test_cache_is_bounded() -> None:
    """The cache keeps the last entries within its bytes, and drops deleted ledgers."""
    cache = EntryCache(100)
    entry = Entry(0, (EntryMessage(b""),))
    for number in range(5):
        cache.put(Position(1, number), entry, 40)
    assert (len(cache), cache.bytes, cache.get(Position(1, 2))) == (2, 80, None)
    assert cache.get(Position(1, 4)) is entry
    cache.put(Position(2, 0), entry, 101)
    assert cache.get(Position(2, 0)) is None
    cache.put(Position(2, 1), entry, 20)
    cache.drop_below(2)
    assert (len(cache), cache.bytes) == (1, 20)
