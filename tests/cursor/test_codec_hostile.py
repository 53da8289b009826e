"""Random and damaged bytes: only the documented error is raised."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_nack.cursor.format._batch_set import BatchSet
from pulsar_nack.cursor.format._ledger import LedgerAcks, decode_ledger, encode_ledger
from pulsar_nack.cursor.format._legacy import LegacyRecord, decode_legacy, encode_legacy
from pulsar_nack.cursor.format._marker import Marker, decode_marker, encode_marker, marker_parts
from pulsar_nack.cursor.format._record import kind_of
from pulsar_nack.errors import CursorFormatError
from pulsar_nack.index import EntryRanges

from .states import contents
from .wire_bytes import block, ledger_record, long_property, number, packed, position, words, words_of

READERS: list[Callable[[bytes], Any]] = [
    lambda record: decode_ledger([record]),
    lambda record: decode_ledger([record, record]),
    lambda record: decode_marker([record]),
    lambda record: decode_marker([record, record]),
    decode_legacy,
    marker_parts,
    kind_of,
]


def samples() -> list[bytes]:
    """Return records of all kinds."""
    random = Random(5)
    state = LedgerAcks(
        EntryRanges.from_ranges([(3, 9), (20, 20), (22, 22), (900, 1_200)]),
        {11: BatchSet(40, 0xFF00FF), 15: BatchSet(3, 5)},
    )
    sparse = LedgerAcks(EntryRanges.from_ranges((entry, entry) for entry in random.sample(range(4_000), 60)))
    dense = LedgerAcks(EntryRanges.from_ranges((2 * entry, 2 * entry) for entry in range(4_000)))
    marker = Marker(7, contents((3, 9), {"a": 1}, {"b": "c"}), {3: (1, 2), 5: (4,), 2_000: (3,)})
    single = LegacyRecord(contents((3, 2), {"a": -1}, {"b": "c"}), {3: state, 9: sparse}, 8)
    return [
        *encode_ledger(3, state),
        *encode_ledger(3, sparse),
        *encode_ledger(3, dense, limit=512),
        *encode_marker(marker),
        *encode_marker(Marker(8, contents((3, 9)), {5: (6,)}, 5, (3,), {})),
        *encode_marker(Marker(8, contents((3, 9), {}, {"b": "c" * 900})), limit=512),
        encode_legacy(single).record,
        position(3, 2) + words(3, *words_of(state.ranges.ranges())) + words(9, *words_of(sparse.ranges.ranges())),
        position(3, 2) + long_property("x", 3),
    ]


SAMPLES = samples()


def read_all(record: bytes) -> None:
    """Read a record in every way; every result is valid."""
    for read in READERS:
        try:
            found = read(record)
        except CursorFormatError:
            continue
        states: Sequence[LedgerAcks] = []
        if isinstance(found, LegacyRecord):
            states = list(found.states.values())
        elif isinstance(found, tuple):
            states = [found[1]]
        for state in states:
            state.ranges._verify()
            state.normalise()


@given(st.binary(max_size=300))
@example(b"")
def test_k34_any_bytes(record: bytes) -> None:
    """K34: random bytes are refused, or are something valid."""
    read_all(record)


@given(st.sampled_from(SAMPLES), st.data())
def test_k34_damaged_records(record: bytes, data: st.DataObject) -> None:
    """K34: records with changed, missing or inserted bytes are refused, or are something valid."""
    damaged = bytearray(record)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        match data.draw(st.integers(0, 3)):
            case 0 if at < len(damaged):
                damaged[at] ^= 1 << data.draw(st.integers(0, 7))
            case 1:
                del damaged[at:]
            case 2:
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=12))
            case _:
                del damaged[at : at + data.draw(st.integers(1, 9))]
    read_all(bytes(damaged))


@given(st.sampled_from(SAMPLES), st.sampled_from(SAMPLES))
def test_k34_records_that_were_joined(one: bytes, other: bytes) -> None:
    """K34: two records one after another are one message to protobuf; they must not be read as one."""
    read_all(one + other)


FULL = b"\xff" * (1 << 16)
HUGE = {
    "a long interval": ledger_record(1, block(1, number(1, 0), packed(2, 2**32)), number(3, 2**32)),
    "a batch with a large size": ledger_record(
        1, block(2, packed(1, 4), packed(2, 2**31 - 1), packed(3, 1), block(4, b"\x01"))
    ),
    "many of those": ledger_record(
        1,
        block(
            2,
            packed(1, *[1] * 10_000),
            packed(2, *[2**31 - 1] * 10_000),
            packed(3, *[1] * 10_000),
            block(4, b"\x01" * 10_000),
        ),
    ),
    "words without end": ledger_record(1, block(1, number(1, 0), block(3, FULL)), number(3, 8 << 16)),
    "many intervals": ledger_record(1, block(1, number(1, 0), packed(2, *[1] * 99_999)), number(3, 50_000)),
    "many gaps": ledger_record(1, block(1, number(1, 0), packed(5, *[0] * 99_999)), number(3, 100_000)),
    "many runs": ledger_record(1, block(1, number(1, 0), packed(4, *[1, 0] * 50_000, 1)), number(3, 50_001)),
    "wide gaps": ledger_record(1, block(1, number(1, 0), packed(5, *[2**40] * 100_000)), number(3, 100_001)),
    "old words": position(1, 1) + block(6, number(1, 3), *[number(2, -1)] * 5_000),
    "old words of nothing": position(1, 1) + block(6, number(1, 3), number(2, 0) * 100_000, number(2, 1)),
    "an old batch": position(1, 1) + block(5, block(1, position(1, 3)), number(2, 0) * 100_000, number(2, 1)),
    "old ranges": position(1, 1) + block(3, block(1, position(3, -1)), block(2, position(3, 2**32 - 2))),
}


@pytest.mark.parametrize("case", HUGE)
def test_k34_small_records_do_not_become_large(case: str) -> None:
    """K34: memory is in proportion to the bytes read, whatever numbers are in them."""
    record = HUGE[case]
    tracemalloc.start()
    try:
        read_all_quickly(record)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(record) + (4 << 20)


def read_all_quickly(record: bytes) -> None:
    """Read a record once in each way, without further checks."""
    for read in (READERS[0], decode_legacy):
        try:
            found = read(record)
        except CursorFormatError:
            continue
        states = found.states.values() if isinstance(found, LegacyRecord) else [found[1]]
        for state in states:
            state.normalise()
