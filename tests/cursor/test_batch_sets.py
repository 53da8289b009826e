"""The batch sets of a ledger, and the sums kept with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.cursor.format._batch_set import BatchSet, BatchSets, batches_size, encode_batches
from pulsar_nack.index import varint_bytes

SETS = st.integers(1, 300).flatmap(lambda size: st.integers(0, 2**size - 1).map(lambda bits: BatchSet(size, bits)))
STEPS = st.lists(st.tuples(st.integers(0, 20), st.one_of(st.none(), SETS)), max_size=40)


def check(sets: BatchSets, model: dict[int, BatchSet]) -> None:
    """Compare with a plain dict, and the sums with what they sum up."""
    assert sets == model
    assert len(sets) == len(model)
    assert sets.size_bytes == sum(varint_bytes(batch.size) for batch in model.values())
    assert sets.unacked_bytes == sum(batch.width for batch in model.values())
    assert sets.width_bytes == sum(varint_bytes(batch.width) for batch in model.values())
    entries = [] if sets.entries is None else [e for a, b in sets.entries.ranges() for e in range(a, b + 1)]
    assert entries == sorted(model)
    assert batches_size(sets) == sum(map(len, encode_batches(sets)))


@given(STEPS)
def test_the_sums_follow_every_change(steps: list[tuple[int, BatchSet | None]]) -> None:
    """Setting, replacing and removing keep the sums right."""
    sets, model = BatchSets(), dict[int, BatchSet]()
    for entry, batch in steps:
        if batch is None:
            assert sets.pop(entry, None) == model.pop(entry, None)
        else:
            sets[entry] = model[entry] = batch
    check(sets, model)
    copy = sets.copy()
    copy[99] = BatchSet(9, 5)
    check(sets, model)
    check(copy, {**model, 99: BatchSet(9, 5)})
    sets.clear()
    check(sets, {})


def test_an_entry_that_cannot_be_is_refused() -> None:
    """Nothing changes if there is no such entry to set or remove."""
    sets = BatchSets({3: BatchSet(4, 1)})
    with pytest.raises(InvalidArgumentError):
        sets[-1] = BatchSet(4, 1)
    with pytest.raises(KeyError):
        del sets[5]
    check(sets, {3: BatchSet(4, 1)})
    assert 3 in sets
    assert 4 not in sets
    assert repr(sets) == f"BatchSets({{3: {BatchSet(4, 1)!r}}})"


def test_the_size_of_many_is_right_within_a_thousandth() -> None:
    """K47: the size of thousands of batch sets is estimated without looking at each, almost exactly."""
    sets = BatchSets({5 * entry + entry % 7: BatchSet(40, entry % 2**20 + 1) for entry in range(5_000)})
    exact = sum(map(len, encode_batches(sets)))
    assert abs(batches_size(sets) - exact) <= exact / 1_000
