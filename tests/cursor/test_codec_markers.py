"""Markers as records."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError, Position
from pulsar_nack.cursor.format._ledger import MAX_RECORD_BYTES
from pulsar_nack.cursor.format._legacy import LegacyRecord, encode_legacy
from pulsar_nack.cursor.format._marker import (
    Marker,
    MarkerContents,
    change_properties,
    changed_properties,
    decode_marker,
    encode_marker,
    encode_snapshot,
    marker_parts,
    properties_room,
    properties_size,
)
from pulsar_nack.cursor.format._record import RecordKind, kind_of
from pulsar_nack.errors import CursorFormatError
from pulsar_nack.ledger.format import MAX_BODY, body_size
from tests.for_each import for_each

from .states import contents
from .wire_bytes import block, long_property, marker_record, number, packed, position, varint

INT63 = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = TEXT.filter(lambda name: not name.startswith("#acks.") and name != "entry-type")
REFERENCES = st.dictionaries(st.one_of(st.integers(0, 500), INT63), st.integers(1, 3), max_size=30).flatmap(
    lambda counts: st.lists(
        st.one_of(st.integers(0, 1_000), INT63),
        min_size=sum(counts.values()),
        max_size=sum(counts.values()),
        unique=True,
    ).map(lambda numbers: shared_out(counts, numbers))
)
MARKERS = st.builds(
    Marker,
    INT63,
    st.builds(
        MarkerContents,
        st.builds(Position, st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1)),
        st.dictionaries(NAMES, st.integers(-(2**63), 2**63 - 1), max_size=3),
        st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    REFERENCES,
)


def shared_out(counts: dict[int, int], numbers: list[int]) -> dict[int, tuple[int, ...]]:
    """Give each ledger as many numbers as it has records."""
    rest = iter(numbers)
    return {ledger: tuple(next(rest) for _ in range(count)) for ledger, count in counts.items()}


def many(count: int, seed: int | None = None) -> Marker:
    """Return a marker with many ledgers, whose records follow each other, or lie anywhere among ten times as many."""
    numbers = range(count) if seed is None else Random(seed).sample(range(10 * count), count)
    return Marker(9, contents((7_000, 4)), {7_000 + 3 * at: (each,) for at, each in enumerate(numbers)})


def strings(*pairs: tuple[str, str], field: int = 7) -> bytes:
    """Return cursor properties as fields."""
    return b"".join(block(field, block(1, name.encode()), block(2, value.encode())) for name, value in pairs)


GOLDEN = {
    "nothing": (Marker(1, contents((3, -1))), marker_record(1, 3, -1)),
    "one record each": (
        Marker(5, contents((7, 41), {}, {"k": "v"}), {7: (10,), 9: (8,), 300: (11,)}),
        marker_record(5, 7, 41, packed(2, 7, 2, 291), packed(4, 20, 3, 6), strings(("k", "v"))),
    ),
    "several records": (
        Marker(5, contents((7, 41)), {7: (10, 12), 8: (11,)}),
        marker_record(5, 7, 41, packed(2, 7, 1), packed(3, 2, 1), packed(4, 20, 4, 1)),
    ),
    "a difference": (
        Marker(6, contents((7, 42)), {9: (20,)}, base=13, dropped=(7, 8), changed_properties={}),
        marker_record(6, 7, 42, number(1, 13), packed(2, 9), packed(4, 40), packed(5, 7, 1), number(6, 1)),
    ),
    "changed properties": (
        Marker(6, contents((7, 42)), base=13, changed_properties={"k": "w", "gone": None}),
        marker_record(6, 7, 42, number(1, 13), number(6, 1), strings(("k", "w")), strings(("gone", ""), field=8)),
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_the_bytes_of_a_marker_do_not_change(case: str) -> None:
    """Markers are written as exactly these bytes, field by field, and read from them."""
    marker, record = GOLDEN[case]
    assert encode_marker(marker) == [record]
    assert decode_marker([record]) == marker
    assert kind_of(record) is RecordKind.MARKER
    assert marker_parts(record) == 1


def test_properties_stand_where_pulsar_has_them() -> None:
    """The properties of the position are fields of Pulsar's own, after the mark."""
    marker = Marker(2, contents((1, 5), {"#pulsar.internal.delayed.bucket_400_400": 403, "n": -5}))
    (record,) = encode_marker(marker)
    mark = position(1, 5) + long_property("#acks.marker", 2)
    known = long_property("#pulsar.internal.delayed.bucket_400_400", 403) + long_property("n", -5)
    assert record == mark + known + block(1001, block(1))


def size_of(marker: Marker) -> int:
    """Return how many bytes the records of a marker take."""
    return sum(map(len, encode_marker(marker)))


def applied(delta: Marker, base: Marker) -> Marker:
    """Return the full marker that a delta on its full base stands for."""
    references = {ledger: base.references[ledger] for ledger in base.references.keys() - set(delta.dropped)}
    said = delta.contents
    if delta.changed_properties is not None:
        strings = dict(base.contents.cursor_properties)
        change_properties(strings, delta.changed_properties)
        said = said._replace(cursor_properties=strings)
    return Marker(delta.sequence, said, references | dict(delta.references))


@given(MARKERS, st.sampled_from([1_024, MAX_RECORD_BYTES]))
def test_a_marker_comes_back(marker: Marker, limit: int) -> None:
    """Every written marker is equal when read, from records within the limit."""
    records = encode_marker(marker, limit=limit)
    assert decode_marker(records) == marker
    assert max(map(len, records)) <= limit
    assert [kind_of(record) for record in records] == [RecordKind.MARKER_PART] * (len(records) - 1) + [
        RecordKind.MARKER
    ]


@given(MARKERS, MARKERS, st.data())
def test_a_difference_gives_the_whole(base: Marker, now: Marker, data: st.DataObject) -> None:
    """A delta on its base means the same as the full marker."""
    dropped = tuple(sorted(base.references.keys() - now.references.keys()))
    changes = {ledger: each for ledger, each in now.references.items() if base.references.get(ledger) != each}
    said, changed = now.contents, None
    if data.draw(st.booleans()):
        changed = changed_properties(base.contents.cursor_properties, said.cursor_properties)
        said = said._replace(cursor_properties={})
    difference = Marker(now.sequence, said, changes, 3, dropped, changed)
    assert applied(decode_marker(encode_marker(difference)), base) == now


def test_many_ledgers_take_a_few_bytes_each() -> None:
    """A marker with 5 000 ledgers takes two bytes for each when their records follow each other, four at random."""
    assert size_of(many(5_000)) < 2 * 5_000 + 60
    assert size_of(many(5_000, seed=1)) < 4 * 5_000
    references = {7_000 + 300 * at: (90_000 + at,) for at in range(50)}
    difference = Marker(9, contents((7_000, 4)), references, 88_000, changed_properties={})
    assert size_of(difference) < 50 * 4 + 60


def test_a_large_marker_is_cut() -> None:
    """K33: a marker beyond the limit is cut; without its last part the others do not count."""
    marker = many(5_000, seed=1)
    records = encode_marker(marker, limit=1_024)
    assert max(map(len, records)) <= 1_024
    assert decode_marker(records) == marker
    assert marker_parts(records[-1]) == len(records) > 15
    assert {kind_of(record) for record in records[:-1]} == {RecordKind.MARKER_PART}
    for record in records[:-1]:
        assert record.startswith(position(0, -1))
        with pytest.raises(CursorFormatError):
            marker_parts(record)
    for wrong in ([], records[1:], records[:-1], records[-1:], [records[1], records[0], *records[2:]]):
        with pytest.raises(CursorFormatError):
            decode_marker(wrong)


def test_parts_of_two_markers_are_no_marker() -> None:
    """K34: a part of an earlier attempt, or of another marker, is detected."""
    marker = many(1_000, seed=1)
    again = Marker(10, marker.contents, marker.references)
    other = Marker(9, marker.contents, {**marker.references, 7_000: (99_999,)})
    records = encode_marker(marker, limit=1_024)
    for changed in (again, other):
        parts = encode_marker(changed, limit=1_024)
        assert len(parts) == len(records)
        with pytest.raises(CursorFormatError):
            decode_marker([parts[0], *records[1:]])


BAD = {
    "ledgers twice": marker_record(1, 1, 1, packed(2, 5, 0), packed(4, 2, 2)),
    "a ledger too high": marker_record(1, 1, 1, packed(2, 2**63), packed(4, 2)),
    "fewer numbers": marker_record(1, 1, 1, packed(2, 5, 1), packed(4, 2)),
    "more numbers": marker_record(1, 1, 1, packed(2, 5), packed(4, 2, 2)),
    "a ledger without records": marker_record(1, 1, 1, packed(2, 5, 1), packed(3, 0, 1), packed(4, 2)),
    "counts of others": marker_record(1, 1, 1, packed(2, 5, 1), packed(3, 2), packed(4, 2, 2)),
    "a negative number": marker_record(1, 1, 1, packed(2, 5), packed(4, 1)),
    "a number too high": marker_record(1, 1, 1, packed(2, 5, 1), packed(4, 2**64 - 2, 2)),
    "a number twice": marker_record(1, 1, 1, packed(2, 5, 1), packed(4, 2, 0)),
    "dropped without a base": marker_record(1, 1, 1, packed(5, 3)),
    "properties of no base": marker_record(1, 1, 1, number(6, 1)),
    "properties removed from all": marker_record(1, 1, 1, number(1, 3), strings(("k", ""), field=8)),
    "a base too high": marker_record(1, 1, 1, number(1, 2**63)),
    "named and dropped": marker_record(1, 1, 1, number(1, 3), packed(2, 5), packed(4, 2), packed(5, 5)),
    "no position": position(-2, 0) + long_property("#acks.marker", 1) + block(1001, block(1)),
    "a negative sequence": marker_record(-1, 1, 1),
    "no part": position(1, 1) + long_property("#acks.marker", 1),
    "two marks": long_property("#acks.ledger", 1) + marker_record(1, 1, 1),
    "an unknown mark": position(1, 1) + long_property("#acks.other", 1) + block(1001, block(1)),
    "a later version": marker_record(1, 1, 1, said=number(5, 2)),
    "no text": marker_record(1, 1, 1, block(7, block(1, b"\xff"), block(2, b"x"))),
    "half a property": marker_record(1, 1, 1, block(7, block(1, b"x"))),
    "no message": b"\xff\xff",
    "nothing": b"",
}


@for_each("case", BAD)
def test_k34_what_is_no_marker_is_refused(case: str) -> None:
    """K34: a marker that contradicts itself, or another record, raises an error."""
    with pytest.raises(CursorFormatError):
        decode_marker([BAD[case]])


@pytest.mark.parametrize("last", [(0, 2), (2, 2), (0, 0), (5, 2**21)])
def test_a_last_part_that_is_not_the_last(last: tuple[int, int]) -> None:
    """The last record must say that it is the last, with a valid number."""
    record = marker_record(1, 1, 1, said=number(2, last[0]) + number(3, last[1]))
    with pytest.raises(CursorFormatError):
        marker_parts(record)


REFUSED = {
    "sequence": Marker(-1, contents((1, 1))),
    "mark_delete": Marker(1, contents((-2, 1))),
    "references": Marker(1, contents((1, 1)), {1: ()}),
    "base": Marker(1, contents((1, 1)), changed_properties={}),
    "dropped": Marker(1, contents((1, 1)), {3: (1,)}, base=1, dropped=(3,)),
    "properties": Marker(1, contents((1, 1), {"#acks.marker": 1})),
    "cursor_properties": Marker(1, contents((1, 1), {}, {"\ud800": "x"})),
    "changed_properties": Marker(1, contents((1, 1), {}, {"k": "v"}), base=1, changed_properties={"k": None}),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_could_not_be_read_is_not_written(field: str) -> None:
    """An invalid value is named."""
    with pytest.raises(InvalidArgumentError) as caught:
        encode_marker(REFUSED[field])
    assert caught.value.field == field


@pytest.mark.parametrize(
    "marker",
    [
        Marker(1, contents((1, 1)), base=-1),
        Marker(1, contents((1, 1)), dropped=(1,)),
        Marker(1, contents((1, 1), {"x": 2**63})),
    ],
)
def test_other_values_are_refused_too(marker: Marker) -> None:
    """An invalid base record, a removal from nothing, and a property of more than 64 bits are refused."""
    with pytest.raises(InvalidArgumentError):
        encode_marker(marker)


def test_properties_beyond_the_limit_are_refused() -> None:
    """The position's properties are in one record, and must leave room in it."""
    marker = Marker(1, contents((1, 1), {f"name {at}": at for at in range(100)}, {"k": "v" * 2_000}))
    with pytest.raises(InvalidArgumentError, match="limit"):
        encode_marker(marker, limit=1_024)
    assert decode_marker(encode_marker(marker, limit=4_096)) == marker


def test_a_property_may_be_larger_than_a_record() -> None:
    """Cursor properties are cut like everything else."""
    marker = Marker(1, contents((1, 1), {}, {"k": "v" * 5_000}))
    records = encode_marker(marker, limit=1_024)
    assert max(map(len, records)) <= 1_024
    assert decode_marker(records) == marker


@for_each("limit", [1 << 10, 5 << 20, 1 << 30])
def test_properties_that_fill_the_room_fit_and_more_do_not(limit: int) -> None:
    """K32: into a snapshot and a legacy record, whatever the other numbers in it."""
    longs, most = {"long": -1}, 2**63 - 1
    room = properties_room(longs, limit)
    text = "x" * room
    while (over := properties_size({"key": text}) + 1 - room) > 0:
        text = text[over:]
    fitting = contents((most, most), longs, {"key": text})
    snapshot = encode_snapshot(Marker(most, fitting))
    assert decode_marker([snapshot]).contents == fitting
    legacy = LegacyRecord(fitting, {}, most)
    assert limit - 40 < len(encode_legacy(legacy, limit=limit).record) <= limit or limit > 1 << 24
    assert body_size([snapshot]) <= MAX_BODY
    larger = fitting._replace(cursor_properties={"key": text + "x" * 40})
    snapshot_of, legacy_of = Marker(most, larger), LegacyRecord(larger, {}, most)
    encode: Any = (
        partial(encode_snapshot, snapshot_of) if limit > 1 << 24 else partial(encode_legacy, legacy_of, limit=limit)
    )
    with pytest.raises(InvalidArgumentError, match=r"properties: expected .*, got .*bytes"):
        encode()


def test_the_helpers_write_varints() -> None:
    """The bytes that the tests compare with are those of protobuf's own documentation."""
    assert (varint(150), varint(-1)) == (b"\x96\x01", b"\xff" * 9 + b"\x01")
