"""Sets of the unacknowledged members of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.cursor.format._batch_set import BatchSet
from tests.for_each import for_each

SIZES = st.integers(1, 200)
NO_INT: Any = "1"


@given(st.data(), SIZES)
def test_is_a_set_of_indexes(data: st.DataObject, size: int) -> None:
    """Unacknowledged indexes are left, in order; merging leaves those that both have."""
    indexes = st.sets(st.integers(0, size - 1))
    one, other = data.draw(indexes), data.draw(indexes)
    batch = BatchSet.acked(size, one)
    assert list(batch) == sorted(set(range(size)) - one)
    assert [batch.is_acked(index) for index in range(size)] == [index in one for index in range(size)]
    assert (batch.is_all_acked, batch.is_untouched) == (len(one) == size, not one)
    assert batch.merge(BatchSet.acked(size, other)) == BatchSet.acked(size, one | other)


@given(SIZES, st.data())
def test_words_are_read_again(size: int, data: st.DataObject) -> None:
    """The words are those of Java's BitSet: signed, lowest first, without zeros at the end."""
    batch = BatchSet.acked(size, data.draw(st.sets(st.integers(0, size - 1))))
    words = batch.words
    assert not words or words[-1] != 0
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert [index for index in range(64 * len(words)) if words[index // 64] >> index % 64 & 1] == list(batch)
    assert BatchSet.from_words(words) == batch
    assert BatchSet.from_words([word & (2**64 - 1) for word in words], size).size == size
    assert BatchSet.from_words([*words, 0, 0]) == batch


@pytest.mark.parametrize("index", [0, 3, 63, 64, 99])
def test_through(index: int) -> None:
    """Up to an index, including it."""
    assert list(BatchSet.through(100, index)) == list(range(index + 1, 100))


def test_equality_knows_no_size() -> None:
    """Sets with the same indexes left are equal for any sizes, because storage has no sizes."""
    assert BatchSet(3, 0b101) == BatchSet(10, 0b101)
    assert hash(BatchSet(3, 0b101)) == hash(BatchSet(10, 0b101))
    assert BatchSet(3, 0b101) != BatchSet(3, 0b111)
    assert BatchSet(3, 0b101).merge(BatchSet(10, 0b111)).size == 10


@for_each(
    "make",
    [
        lambda: BatchSet(-1, 0), lambda: BatchSet(2, 0b100), lambda: BatchSet(2, -1), lambda: BatchSet(2**31, 0),
        lambda: BatchSet.acked(3, [3]), lambda: BatchSet.acked(3, [-1]), lambda: BatchSet.through(3, 3),
        lambda: BatchSet.through(3, -1), lambda: BatchSet.full(-1), lambda: BatchSet.full(2**31),
        lambda: BatchSet.from_words([7], 2), lambda: BatchSet(NO_INT, 0), lambda: BatchSet(3, NO_INT),
        lambda: BatchSet.acked(3, [NO_INT]), lambda: BatchSet.full(NO_INT),
    ],
)  # fmt: skip
def test_refuses_what_is_no_batch(make: Any) -> None:
    """Invalid sizes, indexes beyond the size, and other types are refused."""
    with pytest.raises(InvalidArgumentError, match=r"size|unacked|batch_index"):
        make()
