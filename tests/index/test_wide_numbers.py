"""Numbers of 64 bits: more than 65 536 id blocks at once."""

from __future__ import annotations

from pyroaring import BitMap64

from pulsar_nack import MessageId
from pulsar_nack.index._id_blocks import block_key
from pulsar_nack.index._pending import PendingIds


def test_a_few_numbers_are_taken_out_one_by_one() -> None:
    """A due bucket with a few ids beside 60 000 ledgers costs its own size, not milliseconds."""
    pending = PendingIds()
    pending.widen()
    pending.block_of(block_key(1, 3, -1, -1), None, ())
    pending.numbers = {1, 2, 3, 1 << 40}  # a set refuses the subtraction of a bitmap
    pending.keep_original(3, MessageId(1, 3, first_chunk=MessageId(1, 2)))
    assert list(pending.remove(BitMap64([2, 3]))) == [3]
    assert sorted(pending.numbers) == [1, 1 << 40]
    assert not pending.originals


def test_many_numbers_are_taken_out_at_once() -> None:
    """Beyond a few thousand the bulk way is cheaper, and does the same."""
    pending = PendingIds()
    pending.widen()
    pending.numbers = BitMap64(range(10_000))
    assert pending.remove(BitMap64(range(1, 9_999))) == {}
    assert list(pending.numbers) == [0, 9_999]
