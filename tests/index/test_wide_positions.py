"""Numbers of 64 bits: more than 65 536 slots at once."""

from __future__ import annotations

from pyroaring import BitMap64

from pulsar_nack import MessageId
from pulsar_nack.index._positions import Positions
from pulsar_nack.index._slots import slot_key


def test_a_few_numbers_are_taken_out_one_by_one() -> None:
    """A bucket of a few ids that comes due beside 60 000 ledgers costs its own size, not milliseconds."""
    positions = Positions()
    positions.widen()
    positions.slot_of(slot_key(1, 3, -1, -1))
    positions.pending = {1, 2, 3, 1 << 40}  # a set refuses to have a bitmap subtracted from it
    positions.keep(3, MessageId(1, 3, first_chunk=MessageId(1, 2)))
    assert list(positions.remove(BitMap64([2, 3]))) == [3]
    assert sorted(positions.pending) == [1, 1 << 40]
    assert not positions.originals


def test_many_numbers_are_taken_out_at_once() -> None:
    """Beyond a few thousand the whole is cheaper, and does the same."""
    positions = Positions()
    positions.widen()
    positions.pending = BitMap64(range(10_000))
    assert positions.remove(BitMap64(range(1, 9_999))) == {}
    assert list(positions.pending) == [0, 9_999]
