"""The legacy format: everything in one record, as Pulsar writes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.cursor.format._batch_set import BatchSet
from pulsar_nack.cursor.format._ledger import MAX_RECORD_BYTES, LedgerAcks
from pulsar_nack.cursor.format._legacy import LegacyRecord, decode_legacy, encode_legacy
from pulsar_nack.cursor.format._record import RecordKind, kind_of
from pulsar_nack.errors import CursorFormatError
from pulsar_nack.index import EntryRanges
from tests.for_each import for_each

from .states import contents
from .test_codec import STATES
from .wire_bytes import block, long_property, number, position, words, words_of

LEDGERS = st.dictionaries(st.integers(0, 2**63 - 1), STATES.filter(bool), max_size=4)

JAVA = bytes.fromhex(
    "080710291a0c0a040807102c1204080710311a160a0d080910ffffffffffffffffff011205080910ac02222c0a272370756c7361722e696e746572"
    "6e616c2e64656c617965642e6275636b65745f3430305f34303010930322100a036e656710fbffffffffffffffff012a190a05080910b10210e3ff"
    "ffffffffffffff0110feffffffff01"
)
"""What Pulsar 3.0.7 writes for :data:`OF_JAVA`."""
OF_JAVA = LegacyRecord(
    contents((7, 41), {"#pulsar.internal.delayed.bucket_400_400": 403, "neg": -5}),
    {
        7: LedgerAcks(EntryRanges.from_ranges([(45, 49)])),
        9: LedgerAcks(
            EntryRanges.from_ranges([(0, 300)]),
            {305: BatchSet(100, sum(1 << at for at in range(100) if at not in {2, 3, 4, 64}))},
        ),
    },
)


def message_range(lower: tuple[int, int], upper: tuple[int, int]) -> bytes:
    """Return a range as Pulsar writes it."""
    return block(3, block(1, position(*lower)), block(2, position(*upper)))


def entries(single: LegacyRecord) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges of each ledger."""
    return {ledger: list(state.ranges.ranges()) for ledger, state in single.states.items()}


def test_k27_a_record_of_pulsar_is_read() -> None:
    """K27: a record that Pulsar 3.0.7 wrote, with ranges, a batch set and properties, is read."""
    assert kind_of(JAVA) is RecordKind.LEGACY
    assert decode_legacy(JAVA) == OF_JAVA


def test_k27_a_record_is_that_of_pulsar() -> None:
    """K27: a written record equals Pulsar's, byte by byte, except for the mark with the sequence number."""
    record = encode_legacy(OF_JAVA).record
    mark = long_property("#acks.sequence", 0)
    assert record.count(mark) == 1
    assert record.replace(mark, b"") == JAVA


@given(LEDGERS)
def test_k27_a_state_comes_back(states: dict[int, LedgerAcks]) -> None:
    """K27: a written state is equal when read."""
    for state in states.values():
        state.normalise()
    states = {ledger: state for ledger, state in states.items() if state}
    single = LegacyRecord(contents((3, 7), {"a": -1}, {"b": "c"}), states, 5)
    written = encode_legacy(single)
    assert (written.dropped_ranges, written.dropped_batches) == (0, 0)
    assert decode_legacy(written.record) == single
    assert len(written.record) <= MAX_RECORD_BYTES


@given(LEDGERS)
def test_k27_words_of_any_state_are_read(states: dict[int, LedgerAcks]) -> None:
    """K27: the words of any entries are read as their ranges."""
    expected = {ledger: list(state.ranges.ranges()) for ledger, state in states.items()}
    expected = {ledger: ranges for ledger, ranges in expected.items() if ranges and ranges[-1][1] < 1 << 20}
    record = position(3, 7) + b"".join(words(ledger, *words_of(ranges)) for ledger, ranges in expected.items())
    assert entries(decode_legacy(record)) == expected


def test_k27_old_records_are_read() -> None:
    """K27: a record without properties and batch sets, and one with unknown fields, are read."""
    old = position(4, 10) + message_range((4, 12), (4, 14))
    assert decode_legacy(old) == LegacyRecord(contents((4, 10)), {4: LedgerAcks(EntryRanges.from_ranges([(13, 14)]))})
    assert decode_legacy(position(4, 10)) == LegacyRecord(contents((4, 10)))
    newer = old + block(7, b"a chunk") + number(8, 3) + block(500, b"x")
    assert decode_legacy(newer) == decode_legacy(old)


def test_words_are_read() -> None:
    """The long-word form is a bit set of acknowledged entries, by ledger; a negative word has its highest bit set."""
    record = position(7, 41) + words(7, 0b11 << 45, -(2**63) + 1) + words(9, 0, 0, 5) + words(10)
    assert entries(decode_legacy(record)) == {7: [(45, 46), (64, 64), (127, 127)], 9: [(128, 128), (130, 130)]}


def test_ranges_go_before_words() -> None:
    """If both are present, the ranges count, as in Pulsar."""
    record = position(7, 41) + message_range((7, 44), (7, 49)) + words(7, 1)
    assert entries(decode_legacy(record)) == {7: [(45, 49)]}


def test_k8_a_range_over_ledgers_claims_its_last_one_only() -> None:
    """K8: the first ledger's number of entries is unknown; the last ledger's entries count from its beginning."""
    record = position(1, -1) + message_range((1, 3), (3, 5)) + message_range((4, 2), (4, 2))
    assert entries(decode_legacy(record)) == {3: [(0, 5)]}


def test_ranges_in_any_order_are_joined() -> None:
    """Ranges that overlap, or are not in order, are joined."""
    record = position(1, -1) + b"".join(message_range((5, low), (5, high)) for low, high in [(9, 12), (2, 4), (3, 9)])
    assert entries(decode_legacy(record)) == {5: [(3, 12)]}


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 12_345])
def test_k52_the_lowest_ranges_are_written(count: int) -> None:
    """K52: of too many ranges, exactly the lowest 10 000 are written, and the others are counted."""
    half = EntryRanges.from_ranges((2 * at, 2 * at) for at in range(5_000))
    rest = EntryRanges.from_ranges((2 * at + 7, 2 * at + 7) for at in range(count - 5_000))
    single = LegacyRecord(contents((1, -1)), {8: LedgerAcks(rest), 5: LedgerAcks(half)})
    written = encode_legacy(single)
    assert written.dropped_ranges == max(0, count - 10_000)
    back = decode_legacy(written.record)
    assert back.states[5].ranges == half
    kept = min(count, 10_000) - 5_000
    assert back.states[8].ranges == EntryRanges.from_ranges((2 * at + 7, 2 * at + 7) for at in range(kept))


def test_the_old_form_keeps_to_the_limit() -> None:
    """A record has room for the lowest ranges and batch sets only, and says how many it left out."""
    many = LedgerAcks(EntryRanges.from_ranges((3 * at, 3 * at) for at in range(1_000)))
    sets = {1 + 3 * at: BatchSet(10, 5) for at in range(1_000)}
    single = LegacyRecord(contents((1, -1), {}, {"k": "v" * 100}), {5: many, 6: LedgerAcks(None, sets)})
    for limit in range(2_000, 2_040):
        written = encode_legacy(single, limit=limit)
        assert len(written.record) <= limit
        back = decode_legacy(written.record)
        kept = back.states[5].ranges.range_count if 5 in back.states else 0
        assert written.dropped_ranges == 1_000 - kept
        left = len(back.states[6].batches) if 6 in back.states else 0
        assert written.dropped_batches == 1_000 - left > 0
    few = encode_legacy(single, max_batches=3)
    assert (few.dropped_ranges, few.dropped_batches) == (0, 997)
    assert list(decode_legacy(few.record).states[6].batches) == [1, 4, 7]


def test_properties_must_fit() -> None:
    """Properties are not left out: without room for them nothing is written."""
    with pytest.raises(InvalidArgumentError, match="limit"):
        encode_legacy(LegacyRecord(contents((1, -1), {}, {"k": "v" * 2_000})), limit=1_024)


BAD = {
    "nothing": b"",
    "no position": position(-2, 1),
    "half a position": number(1, 5),
    "an entry too low": position(1, -2),
    "a range that goes back": position(1, 1) + message_range((5, 9), (5, 8)),
    "a range to a ledger before": position(1, 1) + message_range((6, 0), (5, 8)),
    "a range of no ledger": position(1, 1) + message_range((-1, -1), (-1, 8)),
    "a range from too low": position(1, 1) + message_range((5, -2), (5, 8)),
    "a range without an end": position(1, 1) + block(3, block(1, position(5, 3))),
    "a range too long": position(1, 1) + message_range((5, -1), (5, 2**62)),
    "ranges too long": position(1, 1) + message_range((5, -1), (5, 2**31)) + message_range((6, -1), (6, 2**31)),
    "words of no ledger": position(1, 1) + words(-1, 5),
    "a batch of no ledger": position(1, 1) + block(5, block(1, position(-1, 3)), number(2, 5)),
    "a batch of no entry": position(1, 1) + block(5, block(1, position(1, -1)), number(2, 5)),
    "a batch without a position": position(1, 1) + block(5, number(2, 5)),
    "another mark": position(1, 1) + long_property("#acks.other", 5),
    "a part": position(1, 1) + block(1001, block(1)),
    "a part and a sequence": position(1, 1) + long_property("#acks.sequence", 5) + block(1001, block(1)),
    "a negative sequence": position(1, 1) + long_property("#acks.sequence", -5),
    "another proposal": position(1, 1) + long_property("entry-type", 1),
    "a name that is no text": position(1, 1) + block(4, block(1, b"\xff"), number(2, 1)),
}


@for_each("case", BAD)
def test_k34_what_is_not_the_old_form_is_refused(case: str) -> None:
    """K34: a record that contradicts itself, or is something else, raises an error."""
    with pytest.raises(CursorFormatError):
        decode_legacy(BAD[case])


def test_a_batch_that_is_there_twice_is_merged() -> None:
    """Two sets of one entry mean the indexes acknowledged in either."""
    both = [block(5, block(1, position(1, 3)), number(2, bits)) for bits in (0b0111, 0b1101)]
    assert decode_legacy(position(1, 1) + b"".join(both)).states[1].batches == {3: BatchSet(4, 0b0101)}
