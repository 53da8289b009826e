"""Read-only encodings: sets survive, and the smallest encoding is chosen."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from pulsar_nack.index._chunks import seal, unseal

NUMBERS = st.one_of(
    st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=200),
    st.tuples(st.integers(0, 2**32 - 2_000), st.sets(st.integers(0, 1_500), min_size=1, max_size=400)).map(
        lambda made: {made[0] + offset for offset in made[1]}
    ),
    st.tuples(st.integers(0, 2**31), st.integers(1, 5_000)).map(lambda made: set(range(made[0], made[0] + made[1]))),
)


@given(NUMBERS, st.sampled_from([BitMap, BitMap64]), st.sampled_from([BitMap, BitMap64]))
def test_what_is_sealed_comes_back(numbers: set[int], made_of: Any, read_as: Any) -> None:
    """Any set of numbers survives, in any width when sealed and when read."""
    read = unseal(seal(made_of(sorted(numbers))), read_as)
    assert type(read) is read_as
    assert set(read) == numbers


@given(st.sets(st.integers(2**32, 2**48), min_size=1, max_size=100))
def test_wide_numbers_come_back(numbers: set[int]) -> None:
    """Numbers beyond 32 bits survive in every encoding."""
    assert set(unseal(seal(BitMap64(sorted(numbers))), BitMap64)) == numbers


@pytest.mark.parametrize(
    ("kind", "count", "span", "most"),
    [
        ("R", 2_560, 2_560, 0.1),  # a run
        ("R", 30_000, 65_536, 2.0),  # one bit an entry
        ("R", 4_273, 3_300_000, 2.2),  # thin: two bytes
        ("G", 768, 10_240, 1.1),  # a byte a gap
        ("I", 71, 3_300_000, 4.1),  # a few numbers that lie far apart
    ],
)
def test_the_smallest_encoding_wins(kind: str, count: int, span: int, most: float) -> None:
    """Each kind of bucket gets its own encoding, and no more bytes a number than that costs."""
    numbers = BitMap(random.Random(1).sample(range(span), count))
    sealed = seal(numbers)
    assert chr(sealed[0]) == kind
    assert len(sealed) / count <= most


def test_many_numbers_are_never_written_as_gaps() -> None:
    """Beyond 16 384 numbers gaps would take too long for one turn of the loop."""
    numbers = BitMap(random.Random(1).sample(range(300_000), 20_000))
    assert chr(seal(numbers)[0]) == "R"
