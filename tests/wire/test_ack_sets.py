"""Ack sets: pure, against plain references."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.errors import BrokerError
from pulsar_nack.ids import MessageId
from pulsar_nack.wire._consumer._acknowledger import AckSets
from pulsar_nack.wire._protocol._batches import all_of, remaining_of, words_of


@given(st.integers(min_value=0, max_value=2**300))
def test_words_and_back(remaining: int) -> None:
    """A set is equal after it was written as signed words of 64 bits, without zero words at its end."""
    words = words_of(remaining)
    assert remaining_of(words) == remaining
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert not words or words[-1] != 0


def test_words_are_as_the_protocol_has_them() -> None:
    """The lowest index is the lowest bit of the first word; the highest bit of a word is its sign."""
    assert words_of(all_of(64)) == [-1]
    assert words_of(1 << 63) == [-(2**63)]
    assert words_of(0b101 << 63) == [-(2**63), 2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=40))
def test_an_entry_is_done_when_each_of_its_messages_is(acks: list[tuple[int, int]]) -> None:
    """A batch's unacknowledged messages remain; completed entries are forgotten."""
    sets, acked = AckSets(), {entry: set[int]() for entry in range(3)}
    for entry, index in acks:
        acked[entry].add(index)
        remaining = sets.acked(MessageId(1, entry, 0, index, batch_size=5))
        assert remaining == sum(1 << each for each in range(5) if each not in acked[entry])
        if not remaining:
            acked[entry].clear()
    assert len(sets) == sum(bool(each) for each in acked.values())


@pytest.mark.parametrize("message_id", [MessageId(1, 1), MessageId(1, 1, 0, 0, batch_size=1)])
def test_a_message_that_is_alone_in_its_entry(message_id: MessageId) -> None:
    """Nothing remains of an entry with one message, batched or not."""
    assert AckSets().acked(message_id) == 0


def test_a_whole_entry_by_its_id() -> None:
    """An id without a batch index is the whole entry, whatever was known of its members."""
    sets = AckSets()
    sets.acked(MessageId(1, 1, 0, 3, batch_size=5))
    assert sets.acked(MessageId(1, 1)) == 0
    assert len(sets) == 0


@pytest.mark.parametrize("size", [0, 3])
def test_sizes_that_cannot_be_are_refused(size: int) -> None:
    """A member whose batch size is unknown or not above its index changes nothing."""
    sets = AckSets()
    message_id = MessageId(1, 1, 0, 3, batch_size=size)
    with pytest.raises(BrokerError, match="batch_size"):
        sets.acked(message_id)
    with pytest.raises(BrokerError, match="batch_size"):
        sets.acked_through(message_id)
    assert len(sets) == 0


def test_what_failed_is_not_acknowledged() -> None:
    """A member whose acknowledgement failed keeps its entry incomplete, and only that entry."""
    sets = AckSets()
    ids = [MessageId(1, 1, 0, index, batch_size=3) for index in range(3)]
    sets.acked(ids[0])
    sets.acked(ids[1])
    sets.failed(ids[0], sets.generation)
    assert sets.acked(ids[2]) == 0b001
    assert sets.acked(ids[0]) == 0
    sets.failed(ids[0], sets.generation)
    assert sets.acked(ids[0]) == 0
    sets.failed(MessageId(1, 1), sets.generation)
    assert len(sets) == 0


def test_what_failed_after_its_entry_was_forgotten() -> None:
    """A failure has no effect then: the entry counts as one with nothing acknowledged."""
    sets = AckSets(max_entries=1)
    first, other = MessageId(1, 1, 0, 0, batch_size=3), MessageId(1, 2, 0, 0, batch_size=3)
    before = sets.generation
    sets.acked(first)
    sets.acked(other)
    sets.failed(first, before)
    assert sets.acked(first) == 0b110
    before = sets.generation
    sets.forget()
    sets.failed(first, before)
    assert sets.acked(first) == 0b110


def test_cumulative() -> None:
    """Entries before the position are forgotten; of its batch the later members remain, except acknowledged ones."""
    sets = AckSets()
    sets.acked(MessageId(1, 1, 0, 0, batch_size=5))
    sets.acked(MessageId(1, 2, 0, 4, batch_size=5))
    sets.acked(MessageId(1, 3, 0, 0, batch_size=5))
    assert sets.acked_through(MessageId(1, 2, 0, 1, batch_size=5)) == 0b01100
    assert len(sets) == 2
    assert sets.acked_through(MessageId(1, 2, 0, 4, batch_size=5)) == 0
    assert sets.acked_through(MessageId(1, 3)) == 0
    assert len(sets) == 0


def test_the_brokers_ack_set_counts() -> None:
    """An entry is complete with the last member that the broker sent, if only a part; forgetting is complete."""
    sets = AckSets()
    sets.intersect((1, 1), 0b011)
    assert sets.acked(MessageId(1, 1, 0, 0, batch_size=3)) == 0b010
    assert sets.acked(MessageId(1, 1, 0, 1, batch_size=3)) == 0
    sets.intersect((1, 1), 0b011)
    sets.forget()
    assert sets.acked(MessageId(1, 1, 0, 0, batch_size=3)) == 0b110


def test_the_oldest_are_forgotten_first() -> None:
    """Memory is bounded, and a forgotten entry does not complete too early."""
    sets = AckSets(max_entries=2)
    for entry in range(3):
        sets.acked(MessageId(1, entry, 0, 0, batch_size=2))
    assert len(sets) == 2
    assert sets.acked(MessageId(1, 0, 0, 1, batch_size=2)) == 0b01
    assert sets.acked(MessageId(1, 2, 0, 1, batch_size=2)) == 0
