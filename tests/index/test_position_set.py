"""Sets of positions by ledger."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from pulsar_nack.index import PositionSet, portable_bitmap

POSITIONS = st.tuples(st.integers(0, 4), st.one_of(st.integers(0, 20), st.integers(65_530, 65_540)))


@given(st.sets(POSITIONS), st.integers(0, 12))
def test_takes_the_first(positions: set[tuple[int, int]], limit: int) -> None:
    """The lowest positions are removed in order, and the others stay."""
    sets = PositionSet()
    for position in positions:
        sets.add(*position)
    assert sets.take(limit) == sorted(positions)[:limit]
    assert set(sets) == set(sorted(positions)[limit:])
    assert len(sets) == max(len(positions) - limit, 0)


def test_dumps_portable_bitmaps() -> None:
    """Each ledger is dumped in the portable form that other languages read, as by ``portable_bitmap``."""
    sets = PositionSet()
    for entry in (1, 5, 70_000):
        sets.add(9, entry)
    dumped = sets.dump()
    assert list(dumped) == [9]
    assert dumped[9][:4] in {b"\x3a\x30\x00\x00", b"\x3b\x30\x01\x00"}
    assert list(BitMap.deserialize(dumped[9])) == [1, 5, 70_000]
    assert portable_bitmap(array("I", [1, 5, 70_000])) == dumped[9]


def test_memory_follows_what_is_in_it() -> None:
    """Full ledgers take hardly any memory, and none at all when they are removed."""
    sets = PositionSet()
    for ledger in range(4):
        for entry in range(20_000):
            sets.add(ledger, entry)
    assert 0 < sets.bytes < 4 * 300
    sets.trim(4, 0)
    assert len(sets) == sets.bytes == 0
