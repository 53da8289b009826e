"""Acknowledged entries in their stored form."""

from __future__ import annotations

import random
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.index import EntryRanges, add_entries, add_runs, add_words, sections_of, varint_bytes
from pulsar_nack.index import _entries as module
from tests.for_each import for_each
from tests.tiers import sample

NEAR = st.sets(st.integers(0, 400), min_size=1, max_size=150)
FAR = st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=20)
MIXED = st.builds(lambda near, far, by: {each + by for each in near} | far, NEAR, FAR, st.integers(0, 2**40))
LONG = st.lists(st.sampled_from([1, 2, 127, 128, 129, 16_383, 16_384, 20_000]), min_size=1, max_size=5).map(
    lambda lengths: {n for at in range(0, len(lengths), 2) for n in range(sum(lengths[:at]), sum(lengths[: at + 1]))}
)
ENTRIES = st.one_of(NEAR, FAR, MIXED, LONG)


def ranges_of(entries: set[int]) -> EntryRanges:
    """Return a set of entries."""
    ranges = EntryRanges()
    ranges.add_many(entries)
    return ranges


def runs_of(entries: set[int]) -> list[tuple[int, int]]:
    """Return the runs of entries as (first, end), in the simple way."""
    found = []
    for _, group in groupby(enumerate(sorted(entries)), lambda pair: pair[1] - pair[0]):
        run = [entry for _, entry in group]
        found.append((run[0], run[-1] + 1))
    return found


@for_each(
    ("value", "size"), [(0, 1), (1, 1), (127, 1), (128, 2), (16383, 2), (16384, 3), (2**63 - 1, 9), (2**64 - 1, 10)]
)
def test_a_varint_takes_a_byte_for_seven_bits(value: int, size: int) -> None:
    """Seven bits fit into each byte; zero takes one."""
    assert varint_bytes(value) == size


@given(ENTRIES)
def test_a_section_knows_its_lengths_and_their_sizes(entries: set[int]) -> None:
    """Lengths, and their sizes as varints, equal those of a simple look at each entry."""
    check_lengths(entries)


def check_lengths(entries: set[int]) -> None:
    """Compare a section with a simple look at each entry."""
    ranges = ranges_of(entries)
    runs = runs_of(entries)
    lengths = [end - first for first, end in runs]
    gaps = [after[0] - before[1] for before, after in pairwise(runs)]
    (section,) = sections_of(ranges)
    assert (section.first, section.span, section.count) == (min(entries), max(entries) - min(entries) + 1, len(entries))
    assert section.lengths()[::2] == lengths
    assert section.lengths()[1::2] == gaps
    assert section.run_bytes == sum(map(varint_bytes, lengths))
    assert section.gap_bytes == sum(map(varint_bytes, gaps))


@given(st.one_of(NEAR, LONG), st.integers(0, 2**40))
def test_sizes_are_found_without_a_list(entries: set[int], base: int) -> None:
    """Many ranges are measured by shifts of the bitmap alone, with the same result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 0)
        check_lengths({entry + base for entry in entries})


@given(st.one_of(NEAR, LONG), st.integers(0, 2**40))
def test_bits_and_back(entries: set[int], base: int) -> None:
    """Bits represent the entries from the first one on, and give the same entries again."""
    wanted = {entry + base for entry in entries}
    (section,) = sections_of(ranges_of(wanted))
    words = section.words()
    digits = bin(int.from_bytes(words, "little"))[:1:-1]
    assert {section.first + at for at, digit in enumerate(digits) if digit == "1"} == wanted
    assert len(words) == (section.span + 7) // 8
    back = EntryRanges()
    assert add_words(back, words, section.first) == (max(wanted) + 1, len(wanted))
    assert back == ranges_of(wanted)
    back._verify()


def test_bits_are_read_in_slices() -> None:
    """Bits longer than a slice, with some slices empty, give the set entries."""
    data = b"\x01" + bytes(3 * module._SLICE) + b"\x80" + bytes(module._SLICE)
    ranges = EntryRanges()
    assert add_words(ranges, data, 5) == (5 + 8 * (3 * module._SLICE + 2), 2)
    assert list(ranges.ranges()) == [(5, 5), (5 + 8 * (3 * module._SLICE + 2) - 1,) * 2]
    assert add_words(EntryRanges(), bytes(9), 7) == (7, 0)


@given(ENTRIES)
def test_runs_are_added(entries: set[int]) -> None:
    """Runs with an exclusive end make the entries, and the counts are right."""
    ranges = EntryRanges()
    add_runs(ranges, runs_of(entries))
    assert ranges == ranges_of(entries)
    ranges._verify()


@given(ENTRIES)
def test_entries_are_added_in_slices(entries: set[int]) -> None:
    """Ascending entries are added a few at a time, and the counts are right."""
    ranges = EntryRanges()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLICE", 7)
        assert add_entries(ranges, sorted(entries)) == (max(entries), len(entries))
    assert ranges == ranges_of(entries)
    ranges._verify()
    assert add_entries(ranges, []) == (-1, 0)


def test_nothing_has_no_section() -> None:
    """Without entries there is no section."""
    assert list(sections_of(EntryRanges())) == []


@pytest.mark.parametrize("base", [0, 2**40])
def test_many_ranges_are_cut(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries with many ranges are several sections, which together are the entries, though ranges are cut."""
    monkeypatch.setattr(module, "WHOLE", 3)
    monkeypatch.setattr(module, "WINDOW", 100)
    entries = {base + entry for entry in [*range(5, 130), 200, 201, *range(230, 460), 1000, 5000]}
    sections = list(sections_of(ranges_of(entries)))
    found = EntryRanges()
    end = -1
    for section in sections:
        assert section.first >= end
        end = section.first + section.span
        assert section.span <= 100
        assert section.range_count == (len(section.lengths()) + 1) // 2
        add_words(found, section.words(), section.first)
    assert len(sections) > 3
    assert found == ranges_of(entries)


@pytest.mark.parametrize("first", sample([0, 7, 65_530, 65_536, 3 << 16, (1 << 32) - 90_000, (1 << 32) - 5, 1 << 40]))
@for_each("share", [0.01, 0.5, 1.0])
def test_bits_are_read_wherever_they_begin(first: int, share: float) -> None:
    """Entries stored as bits are equal when read, few and many, across containers and 32 bits."""
    chance = random.Random(first + int(100 * share))
    for span in (1, 9, 5_000, 70_000, 140_000):
        inside = [entry for entry in range(first + 1, first + span - 1) if chance.random() < share]
        entries = sorted({first, *inside, first + span - 1})
        bits = sum(1 << (entry - first) for entry in entries[:64]) if span < 64 else _as_bits(entries, first)
        ranges = EntryRanges()
        end, count = add_words(ranges, bits.to_bytes(-(-bits.bit_length() // 8), "little"), first)
        assert (end, count) == (first + span, len(entries))
        assert ranges == EntryRanges.from_ranges((entry, entry) for entry in entries)
        ranges._verify()


def _as_bits(entries: list[int], first: int) -> int:
    flags = bytearray(entries[-1] - first + 1)
    for entry in entries:
        flags[entry - first] = 1
    return int(bytes(flags[::-1]).translate(bytes.maketrans(b"\0\1", b"01")), 2)
