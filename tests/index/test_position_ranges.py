"""Sets of any positions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.index import PositionRanges, PositionSet
from tests.for_each import for_each

Pair = tuple[int, int]
POSITIONS = st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 12), st.integers(65_530, 65_540)))


def test_k9_empty() -> None:
    """K9: a set without positions, and one whose ledgers have all become empty, has no positions and raises nothing."""
    emptied = PositionRanges()
    assert emptied.add(1, 5)
    assert emptied.add(2, 3)
    assert emptied.trim(2, 9) == 2
    for positions in (PositionRanges(), emptied):
        assert not positions
        assert len(positions) == 0
        assert (1, 5) not in positions
        assert not positions.discard(1, 5)
        assert positions.trim(9, 9) == 0


@pytest.mark.parametrize("modulo", [3, 6, 8])
def test_k10_single_acks(modulo: int) -> None:
    """K10: 10 000 single acks by i%3, i%6 and i%8 equal those of a reference set."""
    positions, reference = PositionRanges(), set[Pair]()
    for entry in range(10_000):
        if entry % modulo == 0:
            continue
        assert positions.add(entry % 2, entry)
        reference.add((entry % 2, entry))
        assert len(positions) == len(reference)
    both = {(ledger, entry) for ledger in range(2) for entry in range(10_000)}
    assert {position for position in both if position in positions} == reference


@pytest.mark.parametrize("kind", [PositionRanges, PositionSet])
@given(steps=st.lists(st.tuples(st.sampled_from(["add", "discard", "trim"]), POSITIONS), max_size=30))
def test_k10_any_steps(kind: type[PositionRanges | PositionSet], steps: list[tuple[str, Pair]]) -> None:
    """K10: after adding, discarding and trimming, a set of either kind equals the reference at each step."""
    positions, reference = kind(), set[Pair]()
    for step, position in steps:
        before = len(reference)
        if step == "add":
            reference.add(position)
            assert positions.add(*position) == (len(reference) > before)
        elif step == "discard":
            reference.discard(position)
            assert positions.discard(*position) == (len(reference) < before)
        else:
            reference = {each for each in reference if each > position}
            assert positions.trim(*position) == before - len(reference)
        assert (len(positions), bool(positions)) == (len(reference), bool(reference))
        assert (position in positions) == (position in reference)
    if isinstance(positions, PositionSet):
        assert set(positions) == reference
        assert positions.ledgers == len({ledger for ledger, _ in reference})
    positions.clear()
    assert not positions


def test_random_wide_positions() -> None:
    """Entries and ledgers near 2**63 work like small ones."""
    random = Random(3)
    positions, reference = PositionRanges(), set[Pair]()
    for _ in range(300):
        position = 2**63 - 1 - random.randrange(3), 2**63 - 1 - random.randrange(50)
        assert positions.add(*position) == (position not in reference)
        reference.add(position)
    assert len(positions) == len(reference)
    assert all(position in positions for position in reference)


@for_each("entry", [-1, 2**63])
def test_refuses_what_is_no_entry(entry: int) -> None:
    """An entry out of range is refused and changes nothing."""
    positions = PositionRanges()
    with pytest.raises(InvalidArgumentError, match="entries"):
        positions.add(1, entry)
    assert not positions
