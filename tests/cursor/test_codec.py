"""A ledger's state as records."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor.format._batch_set import BatchSet
from pulsar_nack.cursor.format._ledger import (
    MAX_RECORD_BYTES,
    Form,
    LedgerAcks,
    decode_ledger,
    encode_body,
    encode_ledger,
    entries_size,
    ledger_size,
    smallest_form,
)
from pulsar_nack.cursor.format._record import RecordKind, kind_of
from pulsar_nack.errors import CursorFormatError
from pulsar_nack.index import EntryRanges, sections_of
from tests.for_each import for_each
from tests.tiers import sample

from .wire_bytes import block, ledger_record, number, packed

ENTRY_SETS = st.one_of(
    st.sets(st.integers(0, 300)),
    st.sets(st.integers(0, 2**63 - 1), max_size=20),
    st.sets(st.integers(2**40, 2**40 + 200)),
    st.lists(st.integers(1, 500), max_size=8).map(
        lambda ends: {entry for at in range(0, len(ends), 2) for entry in range(sum(ends[:at]), sum(ends[: at + 1]))}
    ),
)
BATCH_SETS = st.integers(1, 200).flatmap(
    lambda size: st.integers(0, 2**size - 1).map(lambda unacked: BatchSet(size, unacked))
)
STATES = st.builds(
    lambda entries, batches: state_of(entries, {e: b for e, b in batches.items() if e not in entries}),
    ENTRY_SETS,
    st.dictionaries(st.integers(0, 2**63 - 1), BATCH_SETS, max_size=20),
)


def state_of(entries: Iterable[int] = (), batches: dict[int, BatchSet] | None = None) -> LedgerAcks:
    """Return a ledger's state."""
    ranges = EntryRanges()
    ranges.add_many(entries)
    return LedgerAcks(ranges, batches or {})


def form_of(state: LedgerAcks) -> Form:
    """Return the form in which entries in one section are written."""
    (piece,) = sections_of(state.ranges)
    return smallest_form(piece)[1]


def holes(count: int, of: int, seed: int = 1) -> LedgerAcks:
    """Return a ledger of which everything except some random entries is acknowledged."""
    state = LedgerAcks(EntryRanges.from_ranges([(0, of - 1)]))
    for entry in Random(seed).sample(range(of), count):
        state.ranges.discard_range(entry, entry)
    return state


GOLDEN = {
    "nothing": (state_of(), b""),
    "one entry": (state_of([49_999]), block(1, number(1, 49_999)) + number(3, 1)),
    "intervals": (
        state_of([3, 4, 5, 6, 10, 11, 12, 300, 301]),
        block(1, number(1, 3), packed(2, 4, 3, 3, 287, 2)) + number(3, 9),
    ),
    "runs": (
        state_of([e for e in range(400) if e not in {100, 200, 201}]),
        block(1, number(1, 0), packed(4, 100, 99, 0, 198)) + number(3, 397),
    ),
    "gaps": (
        state_of([7, 1000, 1001, 1500]),
        block(1, number(1, 7), packed(5, 992, 0, 498)) + number(3, 4),
    ),
    "words": (
        state_of(range(8, 28, 2)),
        block(1, number(1, 8), block(3, bytes([0x55, 0x55, 0x05]))) + number(3, 10),
    ),
    "batches": (
        state_of([0], {9: BatchSet(10, 0b11_1000_0000), 4: BatchSet(3, 0b101)}),
        block(1, number(1, 0))
        + number(3, 1)
        + block(2, packed(1, 4, 4), packed(2, 3, 10), packed(3, 1, 2), block(4, b"\x05\x80\x03")),
    ),
}


@for_each("case", GOLDEN)
def test_the_bytes_of_a_ledger_do_not_change(case: str) -> None:
    """Each form is written as exactly these bytes, field by field, and read from them."""
    state, body = GOLDEN[case]
    assert encode_ledger(300, state) == [ledger_record(300, body)]
    assert decode_ledger([ledger_record(300, body)]) == (300, state)
    assert kind_of(ledger_record(300, body)) is RecordKind.LEDGER


@given(STATES, st.integers(0, 2**63 - 1), st.sampled_from([512, 1_024, MAX_RECORD_BYTES]))
def test_a_state_comes_back(state: LedgerAcks, ledger: int, limit: int) -> None:
    """K33, K47: every written state is equal when read, no record exceeds the limit, and the size was known."""
    records = encode_ledger(ledger, state, limit=limit)
    found, back = decode_ledger(records)
    assert (found, back) == (ledger, state)
    assert [each.size for each in back.batches.values()] == [state.batches[entry].size for entry in back.batches]
    back.ranges._verify()
    assert max(map(len, records)) <= limit
    assert ledger_size(state, ledger, limit=limit) == sum(map(len, records))


@given(ENTRY_SETS)
def test_the_smallest_form_is_taken(entries: set[int]) -> None:
    """K33: no other form would be smaller."""
    state = state_of(entries)
    for piece in sections_of(state.ranges):
        lengths = piece.lengths()
        chosen = smallest_form(piece)
        sizes = {
            Form.INTERVALS: sum(size(length) for length in lengths),
            Form.RUNS: sum(size(length) for length in lengths[::2]) + sum(length - 1 for length in lengths[1::2]),
            Form.GAPS: sum(size(length) for length in lengths[1::2]) + sum(length - 1 for length in lengths[::2]),
            Form.WORDS: (piece.span + 7) // 8,
        }
        if piece.count == 1:
            assert chosen == (0, Form.ALONE)
        else:
            taken, form = chosen
            assert taken == min(sizes.values()) == sizes[form]


def size(value: int) -> int:
    """Return how many bytes a varint takes."""
    return max(1, -(-value.bit_length() // 7))


def test_k33_each_shape_has_its_form() -> None:
    """K33: few holes in 30 million entries are runs, one entry is itself, every second of 50 000 words."""
    few = holes(100, 30_000_000)
    one = state_of([49_999])
    every_second = state_of(range(0, 50_000, 2))
    assert [form_of(state) for state in (few, one, every_second)] == [Form.RUNS, Form.ALONE, Form.WORDS]
    assert [entries_size(state.ranges) for state in (one, every_second)] == [8, 6_262]
    assert entries_size(few.ranges) < 400
    for state in (few, one, every_second):
        assert decode_ledger(encode_ledger(1, state)) == (1, state)


def test_k46_the_proposals_example_takes_little() -> None:
    """K46: of 5 000 ledgers with one entry each, two ranges are left, of 16 bytes; batch sets alone are no ranges."""
    ledgers = dict.fromkeys(range(1, 5_001), 50_000)
    state = AckState(ledgers, (1, -1))
    state.acknowledge([(1, 0), (5_000, 49_999)])
    left = state.table.states
    assert state.mark_delete_position == (1, 0)
    assert sum(entries_size(acks.ranges) for acks in left.values()) <= 64
    batch = BatchSet.acked(1_000, [0, 999])
    parts = AckState(ledgers, (1, -1))
    parts.acknowledge([(1, 0), (5_000, 49_999)], {(1, 0): batch, (5_000, 49_999): batch})
    assert [(acks.ranges.range_count, len(acks.batches)) for acks in parts.table.states.values()] == [(0, 1), (0, 1)]
    assert sum(ledger_size(acks, ledger) for ledger, acks in parts.table.states.items()) < 400


def test_k33_a_large_state_is_cut() -> None:
    """K33: a state beyond the limit is cut into parts, none over the limit, and is complete again from all of them."""
    random = Random(3)
    batches = {2 * entry: BatchSet(2_000, random.getrandbits(2_000)) for entry in range(25_000)}
    state = LedgerAcks(EntryRanges.from_ranges((entry, entry) for entry in range(1, 50_000, 4)), batches)
    records = encode_ledger(9, state)
    assert len(records) == 2
    assert MAX_RECORD_BYTES - 64 <= len(records[0]) <= MAX_RECORD_BYTES
    assert len(records[1]) <= MAX_RECORD_BYTES
    assert decode_ledger(records) == (9, state)
    assert ledger_size(state, 9) == sum(map(len, records))


@for_each("extra", sample(range(-40, 41)))
def test_k33_the_limit_counts_the_envelope(extra: int) -> None:
    """K33: at each length around the limit, no record exceeds it, and one that fits is not cut."""
    state = state_of(range(0, 2 * 4 * (1_000 + extra), 2))
    records = encode_ledger(2**50, state, limit=1_024)
    assert max(map(len, records)) <= 1_024
    (whole,) = encode_ledger(2**50, state)
    assert (len(records) == 1) is (len(whole) <= 1_024)
    assert decode_ledger(records) == (2**50, state)


def test_many_ranges_are_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger with very many ranges is written in pieces, each in its own form, and is one again."""
    monkeypatch.setattr("pulsar_nack.index._entries.WHOLE", 100)
    monkeypatch.setattr("pulsar_nack.index._entries.WINDOW", 1_000)
    entries = [*range(0, 1_000, 2), *range(1_000, 5_500), *range(5_600, 9_000, 90)]
    state = state_of(entries, {5_555: BatchSet(4, 1)})
    assert len({smallest_form(piece)[1] for piece in sections_of(state.ranges)}) == 3
    parts = list(encode_body(state))
    assert len(parts) > 8
    assert decode_ledger(encode_ledger(4, state)) == (4, state)
    assert ledger_size(state, 4) == sum(map(len, encode_ledger(4, state)))


def test_many_batch_sets_are_written_in_steps() -> None:
    """Thousands of batch sets are several steps, and are all read in order."""
    state = state_of([], {entry * 3: BatchSet(20, entry % 1_000 + 1) for entry in range(3_000)})
    assert len(list(encode_body(state))) == 3
    found, back = decode_ledger(encode_ledger(1, state))
    assert list(back.batches) == sorted(state.batches)
    assert (found, back) == (1, state)
    assert ledger_size(state, 1) == sum(map(len, encode_ledger(1, state)))


@pytest.mark.parametrize(
    ("ledger", "limit", "field"),
    [(-1, MAX_RECORD_BYTES, "ledger"), (2**63, MAX_RECORD_BYTES, "ledger"), (1, 80, "limit")],
)
def test_what_cannot_be_written_is_refused(ledger: int, limit: int, field: str) -> None:
    """Errors name an invalid ledger, and a limit that leaves no room."""
    with pytest.raises(InvalidArgumentError) as caught:
        encode_ledger(ledger, state_of(range(0, 4_000, 2)), limit=limit)
    assert caught.value.field == field


def test_more_than_can_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state too large to be read is not written."""
    monkeypatch.setattr("pulsar_nack.cursor.format._ledger.MAX_ACKED", 4)
    with pytest.raises(InvalidArgumentError, match="state"):
        encode_ledger(1, state_of(range(5)))


ENTRY = number(1, 5)
BAD = {
    "no ascent": block(1, ENTRY) + block(1, number(1, 5)) + number(3, 2),
    "overlap": block(1, ENTRY, packed(2, 10)) + block(1, number(1, 14)) + number(3, 11),
    "wrong count": block(1, ENTRY) + number(3, 2),
    "no count": block(1, ENTRY),
    "an empty interval": block(1, ENTRY, packed(2, 1, 0, 1)) + number(3, 2),
    "an interval without an end": block(1, ENTRY, packed(2, 1, 3)) + number(3, 1),
    "two forms": block(1, ENTRY, packed(2, 1, 3, 1), packed(5, 3)) + number(3, 2),
    "runs that begin with nothing": block(1, ENTRY, packed(4, 0, 3)) + number(3, 3),
    "runs that end with nothing": block(1, ENTRY, packed(4, 3, 0)) + number(3, 3),
    "words that begin with nothing": block(1, ENTRY, block(3, b"\x02\x01")) + number(3, 2),
    "words that end with nothing": block(1, ENTRY, block(3, b"\x01\x00")) + number(3, 1),
    "an entry too high": block(1, number(1, 2**63)) + number(3, 1),
    "a gap too wide": block(1, ENTRY, packed(5, 2**63)) + number(3, 2),
    "an interval too high": block(1, number(1, 2**63 - 1), packed(2, 2)) + number(3, 2),
    "runs too high": block(1, number(1, 2**63 - 2), packed(4, 1, 1)) + number(3, 2),
    "words too high": block(1, number(1, 2**63 - 2), block(3, b"\x05")) + number(3, 2),
    "an interval too long": block(1, ENTRY, packed(2, 2**60)) + number(3, 2**60),
    "runs too long": block(1, ENTRY, packed(4, 2**60)) + number(3, 2**60),
    "long ones together": block(1, ENTRY, packed(2, 2**31 + 1)) * 1
    + block(1, number(1, 2**40), packed(2, 2**31))
    + number(3, 2**32 + 1),
    "batches without sizes": block(2, packed(1, 4), packed(3, 1), block(4, b"\x01")),
    "batches without widths": block(2, packed(1, 4), packed(2, 1), block(4, b"\x01")),
    "no batches": block(2),
    "a batch too high": block(2, packed(1, 2**63), packed(2, 1), packed(3, 1), block(4, b"\x01")),
    "a bit beyond the batch": block(2, packed(1, 4), packed(2, 1), packed(3, 1), block(4, b"\x02")),
    "a batch too large": block(2, packed(1, 4), packed(2, 2**31), packed(3, 1), block(4, b"\x01")),
    "too few bits": block(2, packed(1, 4), packed(2, 9), packed(3, 2), block(4, b"\x01")),
    "too many bits": block(2, packed(1, 4), packed(2, 9), packed(3, 1), block(4, b"\x01\x01")),
    "no message": b"\x0a\xff",
}


@for_each("case", BAD)
def test_k34_what_contradicts_itself_is_refused(case: str) -> None:
    """K34: an invalid state raises an error, quickly, and never gives a smaller or a larger state."""
    with pytest.raises(CursorFormatError):
        decode_ledger([ledger_record(1, BAD[case])])


def test_k34_only_all_parts_are_a_state() -> None:
    """K34: a missing or repeated part, another order, or parts of another ledger or state raise an error."""
    state, other = state_of(range(0, 9_000, 2)), state_of([*range(0, 8_998, 2), 8_999])
    records = encode_ledger(1, state, limit=512)
    mixed = [encode_ledger(ledger, each, limit=512) for ledger, each in ((2, state), (1, other))]
    assert len(records) == 3
    assert len(mixed[0]) == len(mixed[1]) == 3
    wrong = [
        [],
        records[:1],
        records[:2],
        records[1:],
        [records[0], records[2]],
        [records[1], records[0], records[2]],
        [*records, records[2]],
        [*mixed[0][:1], *records[1:]],
        [*records[:1], *mixed[1][1:2], *records[2:]],
    ]
    for each in wrong:
        with pytest.raises(CursorFormatError):
            decode_ledger(each)
    assert decode_ledger(records) == (1, state)


def test_k34_a_changed_part_is_noticed() -> None:
    """K34: parts with other contents have another checksum."""
    records = encode_ledger(1, state_of(range(0, 16_000, 2)), limit=512)
    records[1] = records[1].replace(b"\x55\x55\x55\x55", b"\x55\x51\x55\x55", 1)
    with pytest.raises(CursorFormatError, match="checksum"):
        decode_ledger(records)


def test_what_a_later_release_wrote_is_not_guessed_at() -> None:
    """A record of a later version is refused, and the error says so."""
    with pytest.raises(CursorFormatError, match="later release"):
        decode_ledger([ledger_record(1, block(1, ENTRY), number(3, 1), said=number(5, 2))])


def test_unknown_fields_are_skipped() -> None:
    """Unknown fields, anywhere, are skipped: Pulsar and later releases may add some."""
    body = block(1, ENTRY, number(90, 1)) + number(3, 1) + block(77, b"abc")
    record = ledger_record(1, body, said=block(99, b"more")) + block(7, b"chunk") + number(12, 5)
    assert decode_ledger([record]) == (1, state_of([5]))


@settings(deadline=None)
@given(st.integers(0, 50_000), st.integers(0, 2**32))
def test_one_more_range_costs_little(count: int, seed: int) -> None:
    """K48: an acknowledgement adds no more bytes than the gate reserves for it."""
    random = Random(seed)
    state = state_of(random.sample(range(50_000), min(count, 49_999)))
    before = ledger_size(state, 2**40)
    entry = state.ranges.next_absent(random.randrange(50_000))
    state.ranges.add(entry)
    assert ledger_size(state, 2**40) - before <= 32
