"""The cursor on logs: durability, rollover, failures, other openers, and logs that are no cursor."""

from __future__ import annotations

import asyncio
import errno
import math
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pulsar_nack import ClosedError, Cursor, InvalidArgumentError, Position
from pulsar_nack.cursor.format import Marker, MarkerContents, encode_marker
from pulsar_nack.delayed import DelayedCursor, LogDelayedCursor
from pulsar_nack.errors import LogCorruptedError, LogLockedError, LogStorageError, LogVersionError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FaultyFiles, MemoryFiles
from tests.cursor.test_codec_markers import strings
from tests.cursor.wire_bytes import block, marker_record, number, packed, position

FOLDER = Path("/some/cursors")


@pytest.fixture
def files() -> FaultyFiles:
    """Return simulated files."""
    return FaultyFiles(MemoryFiles(Random(1)))


@pytest.fixture
async def store(files: FaultyFiles) -> AsyncIterator[LocalLogStore]:
    """Open a store of logs over them."""
    async with await LocalLogStore.open(FOLDER, threads=1, files=files) as store:
        yield store


async def reopened(cursor: LogDelayedCursor, store: LocalLogStore) -> LogDelayedCursor:
    """Close a cursor and open it again."""
    await cursor.aclose()
    return await LogDelayedCursor.open(store)


async def test_begins_with_nothing(store: LocalLogStore) -> None:
    """A new cursor has acknowledged nothing and has no properties."""
    async with await LogDelayedCursor.open(store) as cursor:
        assert isinstance(cursor, DelayedCursor)
        assert cursor.mark_delete_position == Position(0, -1)
        assert cursor.properties() == {}


async def test_keeps_its_state(store: LocalLogStore) -> None:
    """Position and properties are equal after a restart; removed and refused changes are not there."""
    cursor = await LogDelayedCursor.open(store)
    await cursor.mark_delete(Position(3, 7))
    await cursor.put_property("a", "1")
    await cursor.put_property("b", "\ud800 Ωmega")
    await cursor.put_property("a", "2")
    await cursor.put_property("", "")
    await cursor.remove_property("")
    await cursor.remove_property("never")
    for _ in range(2):
        assert cursor.mark_delete_position == Position(3, 7)
        assert cursor.properties() == {"a": "2", "b": "\ud800 Ωmega"}
        cursor = await reopened(cursor, store)


async def test_mark_delete_does_not_go_back(store: LocalLogStore, files: FaultyFiles) -> None:
    """An earlier position changes and writes nothing; nor do two concurrent calls depend on their order."""
    cursor = await LogDelayedCursor.open(store)
    await cursor.mark_delete(Position(5, 5))
    written = files.history.count("write")
    for earlier in (Position(5, 4), Position(5, 5), Position(4, 9), Position(0, -1)):
        await cursor.mark_delete(earlier)
    assert files.history.count("write") == written
    await asyncio.gather(cursor.mark_delete(Position(9, 9)), cursor.mark_delete(Position(7, 7)))
    assert cursor.mark_delete_position == (await reopened(cursor, store)).mark_delete_position == Position(9, 9)


async def test_mark_delete_at_the_begin_of_a_ledger(store: LocalLogStore) -> None:
    """A position before a ledger's first entry moves forward like any other, and not back at the same time."""
    cursor = await LogDelayedCursor.open(store)
    await asyncio.gather(
        cursor.mark_delete(Position(5, -1)), cursor.mark_delete(Position(7, 3)), cursor.mark_delete(Position(7, -1))
    )
    assert cursor.mark_delete_position == (await reopened(cursor, store)).mark_delete_position == Position(7, 3)


async def test_many_at_a_time_share_a_write(store: LocalLogStore, files: FaultyFiles) -> None:
    """Changes that arrive during a write share the next one, in order."""
    cursor = await LogDelayedCursor.open(store)
    before = files.history.count("sync")
    await asyncio.gather(*(cursor.put_property("k", str(i)) for i in range(200)))
    assert files.history.count("sync") <= before + 2
    assert cursor.properties() == {"k": "199"}
    assert (await reopened(cursor, store)).properties() == {"k": "199"}


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("ledger", lambda cursor: cursor.mark_delete(Position(-1, 0))),
        ("entry", lambda cursor: cursor.mark_delete(Position(1, -2))),
        ("position", lambda cursor: cursor.mark_delete(None)),
        ("position", lambda cursor: cursor.mark_delete((1, 2, 3))),
        ("entry", lambda cursor: cursor.mark_delete(Position(1, 2**63))),
        ("key", lambda cursor: cursor.put_property(1, "")),
        ("value", lambda cursor: cursor.put_property("a", 1)),
        ("value", lambda cursor: cursor.put_property("a", "x" * 600_000)),
        ("key", lambda cursor: cursor.remove_property(None)),
    ],
)
async def test_bad_arguments(store: LocalLogStore, field: str, call: Callable[[Any], Any]) -> None:
    """An invalid position or text is refused by name, and changes nothing."""
    async with await LogDelayedCursor.open(store) as cursor:
        with pytest.raises(InvalidArgumentError, match=field):
            await call(cursor)
        assert (cursor.mark_delete_position, cursor.properties()) == (Position(0, -1), {})


async def test_closed(store: LocalLogStore) -> None:
    """After closing changes are refused; closing again is harmless, and earlier changes were carried out."""
    cursor = await LogDelayedCursor.open(store)
    begun = asyncio.create_task(cursor.put_property("a", "1"))
    await asyncio.sleep(0)
    await cursor.aclose()
    await begun
    await cursor.aclose()
    with pytest.raises(ClosedError):
        await cursor.put_property("a", "2")
    with pytest.raises(ClosedError):
        await cursor.mark_delete(Position(1, 1))
    assert (await LogDelayedCursor.open(store)).properties() == {"a": "1"}


async def test_cancelled_changes(store: LocalLogStore) -> None:
    """A cancelled change is made or not, in memory as on the log; the others are made."""
    cursor = await LogDelayedCursor.open(store)
    tasks = [asyncio.create_task(cursor.put_property(str(i), "x")) for i in range(20)]
    for rounds in range(20):
        tasks[rounds].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    await cursor.put_property("last", "x")
    found = dict(cursor.properties())
    done = {str(i) for i, task in enumerate(tasks) if not task.cancelled()}
    assert done <= found.keys()
    assert (await reopened(cursor, store)).properties() == found


async def test_rolls_its_log_over(store: LocalLogStore) -> None:
    """A log that has grown is replaced by a new one with the same state; only one is left, and it stays small."""
    cursor = await LogDelayedCursor.open(store, compact_at=1_000)
    for i in range(300):
        await cursor.put_property(f"k{i % 7}", str(i))
        await cursor.mark_delete(Position(i, 0))
    await cursor.aclose()
    (name,) = await store.names()
    assert int(name.removeprefix("delayed.cursor-")) > 5
    log = await store.open_log(name, read_only=True)
    assert log.size < 3_000
    cursor = await LogDelayedCursor.open(store)
    assert cursor.mark_delete_position == Position(299, 0)
    assert cursor.properties() == {f"k{i % 7}": str(i) for i in range(293, 300)}


async def test_a_large_state_is_not_rolled_over_all_the_time(store: LocalLogStore) -> None:
    """A log that is large because the state is large stays until it is four times as large as necessary."""
    cursor = await LogDelayedCursor.open(store, compact_at=0)
    for i in range(100):
        await cursor.put_property(str(i), "x" * 100)
    await cursor.aclose()
    (name,) = await store.names()
    assert int(name.removeprefix("delayed.cursor-")) < 4


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "make_folder", "sync_folder"])
@pytest.mark.parametrize("skip", [0, 1, 2])
async def test_a_rollover_that_fails(store: LocalLogStore, files: FaultyFiles, operation: str, skip: int) -> None:
    """If the new log cannot be created the old one continues, and all reported changes are there afterwards."""
    cursor = await LogDelayedCursor.open(store, compact_at=400)
    kept: dict[str, str] = {}
    for i in range(60):
        if i % 10 == 5:
            files.fail(errno.ENOSPC, operation, skip=skip, times=2)
        key, value = str(i % 3), str(i)
        try:
            await cursor.put_property(key, value)
        except LogStorageError:
            assert cursor.properties() == kept
        else:
            kept[key] = value
    files.heal()
    await cursor.put_property("last", "")
    found = {**kept, "last": ""}
    assert cursor.properties() == found
    cursor = await reopened(cursor, store)
    assert cursor.properties() == found
    assert len(await store.names()) == 1


async def test_disk_full(store: LocalLogStore, files: FaultyFiles) -> None:
    """On a full disk each change raises, nothing changes, and it works again when there is room."""
    cursor = await LogDelayedCursor.open(store)
    await cursor.put_property("a", "1")
    files.fail(errno.ENOSPC, "write", times=math.inf)
    results = await asyncio.gather(
        cursor.put_property("a", "2"),
        cursor.remove_property("a"),
        cursor.mark_delete(Position(1, 1)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [LogStorageError] * 3
    assert len(set(map(id, results))) == 3
    assert "No space left on device" in str(results[0])
    assert (cursor.mark_delete_position, cursor.properties()) == (Position(0, -1), {"a": "1"})
    files.heal()
    await cursor.put_property("b", "2")
    cursor = await reopened(cursor, store)
    assert (cursor.mark_delete_position, cursor.properties()) == (Position(0, -1), {"a": "1", "b": "2"})


async def test_one_owner(store: LocalLogStore) -> None:
    """A second opener gets an error, also after a compaction; other names are other cursors."""
    async with await LogDelayedCursor.open(store, compact_at=300) as cursor:
        for i in range(40):
            await cursor.put_property("k", str(i))
            with pytest.raises(LogLockedError, match="cursor-"):
                await LogDelayedCursor.open(store)
        async with await LogDelayedCursor.open(store, "other") as other:
            assert other.properties() == {}
    async with await LogDelayedCursor.open(store) as cursor:
        assert cursor.properties() == {"k": "39"}


OLD, NEW = "delayed.cursor-0000000003", "delayed.cursor-0000000004"


def marker(sequence: int, position: Position, properties: dict[str, str]) -> list[bytes]:
    """Return the records of a state."""
    return encode_marker(Marker(sequence, MarkerContents(position, {}, properties)), limit=1_000)


def record(sequence: int, *body: bytes, said: bytes = b"") -> bytes:
    """Return a state as a handmade record."""
    return marker_record(sequence, 1, 1, *body, said=said)


async def write(store: LocalLogStore, name: str, *records: bytes) -> None:
    """Write a handmade log."""
    async with await store.create(name) as log:
        await log.append_many(records)


STATE = record(5, strings(("a", "1")))


@pytest.mark.parametrize(
    "records",
    [
        (b"something else",),
        (b'{"format": 1}', b'{"put": ["a", "1"]}'),
        (b"",),
        (b"\xff",),
        (STATE, b"something else"),
        (STATE, position(-2, 3)),
        (STATE, record(6, block(7, block(1, b"a")))),
        (STATE, record(6, block(7, block(1, b"\xff"), block(2, b"")))),
        (STATE, record(6, packed(2, 1), packed(4, 0))),
        (STATE, record(6, number(1, 9), number(6, 1))),
        (STATE, record(6, number(1, 1), number(6, 1))),
        (record(6, number(1, 0), number(6, 1)),),
        (STATE, record(6, said=number(2, 1) + number(3, 2))),
    ],
)
async def test_what_is_no_cursor(store: LocalLogStore, records: tuple[bytes, ...]) -> None:
    """A foreign log, or one that lacks its end, is refused with an error, left as it is, and closed."""
    await write(store, OLD, *records)
    for _ in range(2):
        with pytest.raises(LogCorruptedError, match=re.escape(OLD)):
            await LogDelayedCursor.open(store)
    assert await store.names() == [OLD]
    async with await store.open_log(OLD) as log:
        assert [each.data async for each in log.records()] == list(records)


async def test_a_later_release(store: LocalLogStore) -> None:
    """A later release's cursor is refused with its version, and left as it is."""
    await write(store, OLD, STATE, record(6, said=number(5, 2)))
    with pytest.raises(LogVersionError, match="version 2"):
        await LogDelayedCursor.open(store)
    assert await store.names() == [OLD]


async def test_acknowledgements_are_left_alone(store: LocalLogStore) -> None:
    """A Cursor with acknowledgements is no tracker's cursor, even with the name of one."""
    async with await Cursor.open(store, {1: 9}, name="delayed.cursor") as cursor:
        await cursor.acknowledge([(1, 3)])
    with pytest.raises(InvalidArgumentError, match="no Cursor with acknowledgements"):
        await LogDelayedCursor.open(store)
    async with await Cursor.open(store, {1: 9}, name="delayed.cursor") as cursor:
        assert await cursor.is_acked((1, 3))


async def test_a_log_that_lost_everything(store: LocalLogStore) -> None:
    """If only a snapshot shows that there was a state, the cursor is refused, not begun again."""
    await write(store, f"{OLD}-snapshot", STATE)
    for _ in range(2):
        with pytest.raises(LogCorruptedError, match="there is a snapshot"):
            await LogDelayedCursor.open(store)


async def test_follows_a_log_that_ended(store: LocalLogStore) -> None:
    """After a crash between the seal of the old log and its removal, the new one counts."""
    await write(store, OLD, *marker(5, Position(1, 1), {"a": "old"}))
    await write(store, NEW, *marker(6, Position(2, 2), {"a": "new"}))
    async with await store.open_log(OLD) as log:
        await log.seal()
    async with await LogDelayedCursor.open(store) as cursor:
        assert cursor.properties() == {"a": "new"}
        assert cursor.mark_delete_position == Position(2, 2)
        assert await store.names() == [NEW]


@pytest.mark.parametrize(
    "begun", [[], marker(6, Position(2, 2), {"a": "x" * 5_000})[:-1], marker(4, Position(0, 0), {})]
)
async def test_a_log_that_nothing_leads_to_is_rubbish(store: LocalLogStore, begun: list[bytes]) -> None:
    """After a crash before the new log's first state is complete, or with later writes to the old one, that counts."""
    await write(store, OLD, *marker(5, Position(1, 1), {"a": "old"}))
    await write(store, NEW, *begun)
    async with await LogDelayedCursor.open(store) as cursor:
        assert cursor.properties() == {"a": "old"}
        assert await store.names() == [OLD]


async def test_forgets_under_protection(store: LocalLogStore, files: FaultyFiles) -> None:
    """A snapshot's name is removed before it may be deleted; without a name there is a write too, which may fail."""
    key = "#pulsar.internal.delayed.bucket_1_2"
    cursor = await LogDelayedCursor.open(store)
    await cursor.put_property(key, "7")
    await cursor.put_property("mine", "7")
    await cursor.forget(7)
    assert cursor.properties() == {"mine": "7"}
    files.fail(errno.EIO, "write")
    with pytest.raises(LogStorageError):
        await cursor.forget(7)
