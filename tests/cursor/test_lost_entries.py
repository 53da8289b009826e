"""Ledgers that are shorter than their acknowledgements, and Pulsar's ranges over several ledgers."""

from __future__ import annotations

import errno
import math
from pathlib import Path

import pytest

from pulsar_nack import Position
from pulsar_nack.cursor import BatchSet, Cursor
from pulsar_nack.delayed import LogDelayedCursor
from pulsar_nack.errors import LogStorageError

from .stage import Home, acked, config_of, faulty_home, local_home, memory_home, object_home, positions
from .test_codec_legacy import message_range
from .wire_bytes import position


@pytest.mark.parametrize("kind", ["memory", "local", "object"])
async def test_what_lies_beyond_the_end_is_dropped(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """O24: a ledger lost its tail: entries there are not acknowledged, whatever is written there later."""
    home = {"memory": memory_home, "local": lambda: local_home(tmp_path), "object": object_home}[kind]()
    async with home.cursor({1: 20}) as cursor:
        await cursor.acknowledge_cumulative((1, 15))
        await cursor.acknowledge([Position(1, 18)])
    ledgers = {1: 10}
    async with home.cursor(ledgers) as cursor:
        assert (cursor.mark_delete_position, cursor.backlog) == ((1, 9), 0)
        assert cursor.statistics().cut_entries == 7
        ledgers[1] = 20
        assert (cursor.backlog, cursor.next_position, await acked(cursor)) == (10, (1, 10), [])
    assert "acknowledged 7 entries beyond the end of ledgers [1]" in caplog.text
    async with home.cursor(ledgers) as cursor:
        assert (cursor.mark_delete_position, cursor.backlog, cursor.statistics().cut_entries) == ((1, 9), 10, 0)


async def test_it_is_dropped_for_good_when_the_cursor_is_open() -> None:
    """O24: a process killed later does not restore it; if it cannot be written, opening fails."""
    home, files = faulty_home()
    async with home.cursor({1: 20}) as cursor:
        await cursor.acknowledge_cumulative((1, 15))
    store = await home.open()
    files.fail(errno.ENOSPC, "write", skip=2, times=math.inf)
    with pytest.raises(LogStorageError):
        await Cursor.open(store, {1: 10}, config_of())
    files.heal()
    await store.aclose()
    store = await home.open()
    cursor = await Cursor.open(store, {1: 10}, config_of())
    found = memory_home(files.inner.after_crash())  # type: ignore[attr-defined]
    async with found.cursor({1: 20}) as other:
        assert (other.mark_delete_position, other.backlog) == ((1, 9), 10)
    await cursor.aclose()
    await store.aclose()


async def test_single_entries_and_batches_beyond_the_end() -> None:
    """O24: single entries and parts of batches too, also in ledgers that do not fit into memory."""
    for cache_bytes in (1 << 20, 1):
        home = memory_home()
        config = config_of(max_individual_ack_cache_bytes_per_cursor=cache_bytes)
        ledgers = dict.fromkeys(range(1, 8), 20)
        sets = {Position(ledger, 17): BatchSet.acked(10, [1, 2]) for ledger in ledgers}
        async with home.cursor(ledgers, config) as cursor:
            for ledger in ledgers:
                sets = {Position(ledger, 17): BatchSet.acked(10, [1, 2])}
                await cursor.acknowledge([*positions(ledger, (3, 8, 9, 10, 18)), *sets], batch_sets=sets)
        short = ledgers | dict.fromkeys((2, 5, 7), 10)
        async with home.cursor(short, config) as cursor:
            assert cursor.backlog == 4 * 15 + 3 * 7
            short |= ledgers
            for ledger in ledgers:
                kept = [3, 8, 9] if ledger in {2, 5, 7} else [3, 8, 9, 10, 18]
                assert [entry for entry in range(20) if await cursor.is_acked((ledger, entry))] == kept
                assert (await cursor.batch_set((ledger, 17)) is None) == (ledger in {2, 5, 7})


async def test_nothing_is_dropped_where_sizes_are_not_known() -> None:
    """O24: of a remote topic, and of a deleted ledger, nothing is dropped."""
    home = memory_home()
    async with home.cursor({1: 20, 2: 20}) as cursor:
        await cursor.acknowledge([Position(1, 3), Position(2, 18)])
    async with home.cursor(None) as cursor:
        assert await acked(cursor) == [(1, 3), (2, 18)]
    async with home.cursor({2: 20}) as cursor:
        assert (await acked(cursor), cursor.statistics().cut_entries) == ([(1, 3), (2, 18)], 0)


async def store_record(home: Home, record: bytes) -> None:
    """Make a record of Pulsar what a cursor finds."""
    async with await home.open() as store, await store.create("cursor-0000000001") as log:
        await log.append(record)


async def test_ranges_over_several_ledgers_are_split() -> None:
    """O25: a range from one ledger to another counts in each of them, as far as their sizes are known."""
    cases: list[tuple[dict[int, int], tuple[int, int], list[tuple[tuple[int, int], tuple[int, int]]], int]] = [
        ({1: 1000, 2: 500}, (2, 200), [((1, 100), (1, 999)), ((2, -1), (2, 200))], 349),
        ({1: 1000, 2: 500}, (2, -1), [((1, 100), (1, 999))], 50 + 500),
        ({1: 1000, 2: 0, 4: 3, 6: 500}, (6, 200), [((1, 100), (1, 999)), ((4, -1), (4, 2)), ((6, -1), (6, 200))], 349),
        ({1: 101, 2: 500}, (2, 200), [((2, -1), (2, 200))], 50 + 299),
        ({2: 500}, (2, 200), [], 299),
    ]

    async def split(case: tuple[dict[int, int], tuple[int, int], object, int]) -> None:
        ledgers, upper, ranges, backlog = case
        home = memory_home()
        await store_record(home, position(1, 50) + message_range((1, 100), upper))
        for _ in range(2):
            async with home.cursor(ledgers) as cursor:
                assert (await cursor.individually_deleted(), cursor.backlog) == (ranges, backlog)

    for case in cases:
        await split(case)


async def test_both_kinds_of_names_are_forgotten() -> None:
    """O23: any cursor forgets each property that names a snapshot, and no other property."""
    names = {"#pulsar.internal.delayed.bucket_1_1": "7", "#pulsar.internal.delayed.part_1_1_1": "7", "other": "7"}
    async with await memory_home().open() as store:
        for kind in (Cursor, LogDelayedCursor):
            cursor = await (Cursor.open(store, {1: 10}) if kind is Cursor else LogDelayedCursor.open(store, "delayed"))
            async with cursor:
                for name, value in names.items():
                    await cursor.put_property(name, value)
                await cursor.forget(7)
                assert dict(cursor.properties()) == {"other": "7"}
