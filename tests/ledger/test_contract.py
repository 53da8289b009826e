"""The contract of log stores and logs: each case runs on every home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from pulsar_nack.errors import (
    ClosedError,
    InvalidArgumentError,
    LogExistsError,
    LogNotFoundError,
    LogSealedError,
    LogStorageError,
)
from pulsar_nack.ledger import Log, LogStore, Record
from pulsar_nack.ledger.format import MAX_BODY
from tests.for_each import for_each

from .homes import KINDS, Opener, content, opener, reopened


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens the same store as often as it is called."""
    return opener(str(request.param), tmp_path / "logs")


@pytest.fixture
async def store(home: Opener) -> AsyncIterator[LogStore]:
    """Open a store with small parts."""
    async with await home() as store:
        yield store


async def test_append_and_read(store: LogStore) -> None:
    """Records are numbered from 0 without gaps, and read by range and by iterating, also empty ones."""
    log = await store.create("a")
    assert [await log.append(data) for data in (b"x", b"", b"yy")] == [0, 1, 2]
    assert await log.append_many([b"1", b"2"]) == 3
    data = bytearray(b"z")
    append = asyncio.ensure_future(log.append(data))
    await asyncio.sleep(0)
    data[:] = b"changed meanwhile"
    assert await append == 5
    assert (log.name, log.length, log.is_sealed) == ("a", 6, False)
    assert await log.read(1, 3) == [b"", b"yy", b"1"]
    assert [record async for record in log.records(4)] == [Record(4, b"2"), Record(5, b"z")]
    assert [record async for record in log.records(6)] == []
    assert isinstance(log, Log)
    assert isinstance(store, LogStore)


async def test_many_parts(store: LogStore) -> None:
    """A log continues over many parts, and is read across them, also after reopening."""
    log = await store.create("a")
    records = [b"%d" % number * (number % 70) for number in range(300)]
    for at in range(0, 300, 3):
        assert await log.append_many(records[at : at + 3]) == at
    size = log.size
    assert size > sum(map(len, records))
    for again in range(3):
        if again:
            log = await reopened(store, log, read_only=again == 2)
        assert await content(log) == records
        assert log.length == 300
        assert 0.5 * size < log.size < 1.5 * size
        for first in range(0, 300, 7):
            assert await log.read(first, min(first + 40, 299)) == records[first : first + 41]


async def test_a_record_larger_than_a_part(store: LogStore) -> None:
    """A record that does not fit into a part of the usual size gets its own part."""
    log = await store.create("a")
    records = [b"small", b"x" * 5000, b"small again", b"y" * 400_000, b"z" * 3_000_000, b""]
    for record in records:
        await log.append(record)
    assert await content(await reopened(store, log)) == records


async def test_parts_of_a_large_append(store: LogStore) -> None:
    """Single records and ranges of a large append are found, before and after sealing and reopening."""
    log = await store.create("a")
    records = [b"%05d" % number * 200 for number in range(2000)]
    await log.append_many(records[:1500])
    await log.append_many(records[1500:])
    for again in range(3):
        if again:
            log = await reopened(store, log, read_only=again == 2)
        for first, last in ((0, 0), (19, 19), (130, 390), (777, 777), (1400, 1600), (1999, 1999)):
            assert await log.read(first, last) == records[first : last + 1]
        assert await content(log) == records
        if not again:
            await log.seal()


async def test_concurrent_appends_share_writes(store: LogStore) -> None:
    """Appends are numbered in the order of their calls, and those that wait share a write."""
    log = await store.create("a")
    numbers = await asyncio.gather(*(log.append(b"%d" % number) for number in range(500)))
    assert numbers == list(range(500))
    assert log.size < 10_000
    assert await content(log) == [b"%d" % number for number in range(500)]


async def test_seal(store: LogStore) -> None:
    """A sealed log accepts nothing more, for ever, and can be read; sealing again is harmless."""
    log = await store.create("a")
    await log.append(b"x")
    await log.seal()
    await log.seal()
    for _ in range(3):
        assert log.is_sealed
        with pytest.raises(LogSealedError, match="log a"):
            await log.append(b"y")
        assert await content(log) == [b"x"]
        log = await reopened(store, log)
    reader = await store.open_log("a", read_only=True)
    assert reader.is_sealed
    await log.delete()
    assert await store.names() == []


async def test_seal_of_an_empty_log(store: LogStore) -> None:
    """A log without records can be sealed, and opened."""
    log = await store.create("a")
    await log.seal()
    log = await reopened(store, log)
    assert (log.length, log.is_sealed, await content(log)) == (0, True, [])


async def test_appends_behind_a_seal(store: LogStore) -> None:
    """Appends called before a seal are in the log, those called after it are refused, also in one burst."""
    log = await store.create("a")
    calls = [log.append(b"1"), log.append(b"2"), log.seal(), log.append(b"3"), log.seal(), log.append(b"4")]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:3] == [0, 1, None]
    assert [type(result) for result in results[3:]] == [LogSealedError, type(None), LogSealedError]
    assert results[3] is not results[5]
    assert await content(await reopened(store, log)) == [b"1", b"2"]


async def test_names_and_deletion(store: LogStore) -> None:
    """Logs are listed by name; a deleted one is gone, and its name is free again."""
    logs = {name: await store.create(name) for name in ("b", "a", "#c_1.x-y", "_c_1.x-y")}
    for log in logs.values():
        await log.append(b"x")
    assert await store.names() == ["#c_1.x-y", "_c_1.x-y", "a", "b"]
    with pytest.raises(LogExistsError):
        await store.create("a")
    for name, log in logs.items():
        await log.aclose()
        await store.delete(name)
        with pytest.raises(LogNotFoundError):
            await store.open_log(name)
        with pytest.raises(LogNotFoundError):
            await store.open_log(name, read_only=True)
        with pytest.raises(LogNotFoundError):
            await store.delete(name)
    assert await store.names() == []
    log = await store.create("a")
    assert log.length == 0
    await log.delete()
    await log.aclose()
    with pytest.raises(ClosedError):
        await log.append(b"x")
    assert await store.names() == []


async def test_read_only(store: LogStore, home: Opener) -> None:
    """A log that is open for reading sees what was durable then, beside a writer, and refuses appends."""
    writer = await store.create("a")
    await writer.append(b"x")
    async with await home() as other:
        log = await other.open_log("a", read_only=True)
        await writer.append(b"y")
        assert (log.length, await content(log)) == (1, [b"x"])
        for call in (log.append(b"x"), log.seal()):
            with pytest.raises(LogStorageError, match="for reading only"):
                await call
        for number in range(30):
            await writer.append(b"%d" % number)
        await writer.seal()
        assert (log.length, await content(log)) == (1, [b"x"])
        await writer.aclose()
        await log.delete()
        assert await other.names() == []


@for_each("name", ["", ".", "..", "a/b", "a\\b", "-x", "a b", "ä", "x" * 201, "a\n", None, 1])
async def test_bad_names(store: LogStore, name: str) -> None:
    """An invalid log name is refused by every call, and nothing is created."""
    for call in (store.create, store.open_log, store.delete):
        with pytest.raises(InvalidArgumentError, match="name"):
            await call(name)
    assert await store.names() == []


async def test_bad_arguments(store: LogStore) -> None:
    """Invalid data and ranges are refused by name, and nothing is added."""
    log = await store.create("a")
    await log.append(b"x")
    for data in ("text", None, 5, [1]):
        with pytest.raises(InvalidArgumentError, match="data"):
            await log.append(data)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="data"):
        await log.append_many([b"x", "y"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="records"):
        await log.append(bytes(MAX_BODY - 3))
    for first, last in ((-1, 0), (0, 1), (1, 1), (True, 0), (0, 0.0)):
        with pytest.raises(InvalidArgumentError, match=r"first|last"):
            await log.read(first, last)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="first"):
        await anext(log.records(-1))
    assert (log.length, await log.append_many([])) == (1, 1)
    assert log.length == 1


async def test_the_largest_append(store: LogStore) -> None:
    """Records up to a log's byte limit per append are accepted, and read."""
    log = await store.create("a")
    await log.append(bytes(MAX_BODY - 4))
    (record,) = await (await reopened(store, log)).read(0, 0)
    assert len(record) == MAX_BODY - 4


async def test_after_close(store: LogStore) -> None:
    """A closed log and a closed store say so; closing again is harmless, and closing the store closes its logs."""
    log, other = await store.create("a"), await store.create("b")
    await log.append(b"x")
    async with log:
        pass
    await log.aclose()
    for call in (log.append(b"y"), log.read(0, 0), log.seal(), log.delete(), anext(log.records())):
        with pytest.raises(ClosedError, match="log a is closed"):
            await call
    await store.aclose()
    await store.aclose()
    for refused in (store.create("c"), store.open_log("a"), store.names(), store.delete("a")):
        with pytest.raises(ClosedError, match="store"):
            await refused
    with pytest.raises(ClosedError, match="log b"):
        await other.append(b"x")


async def test_close_carries_out_what_was_called(store: LogStore) -> None:
    """Appends called before the close are durable, and answered."""
    log = await store.create("a")
    calls = [asyncio.ensure_future(log.append(b"%d" % number)) for number in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(log.aclose(), log.aclose())
    assert await asyncio.gather(*calls) == list(range(20))
    assert (await store.open_log("a")).length == 20


@pytest.mark.parametrize("seed", range(3))
async def test_many_cancellations(store: LogStore, seed: int) -> None:
    """Cancelled appends are in the log as a whole or not at all, in order, and returned ones are there."""
    log, random = await store.create("a"), Random(seed)
    appended: dict[bytes, int] = {}

    async def append(number: int) -> None:
        first = await log.append_many([b"%d" % number, b"%d second" % number])
        appended[b"%d" % number] = first

    tasks = [asyncio.ensure_future(append(number)) for number in range(60)]
    while pending := [task for task in tasks if not task.done()]:
        random.choice(pending).cancel()
        await asyncio.sleep(0.001)
    log = await reopened(store, log)
    found = await content(log)
    assert found[1::2] == [record + b" second" for record in found[::2]]
    assert [int(record) for record in found[::2]] == sorted(int(record) for record in found[::2])
    assert all(found[first] == record for record, first in appended.items())


async def test_two_stores_share_the_names(store: LogStore, home: Opener) -> None:
    """One store sees what another creates and deletes; of two that create the same log one is refused."""
    async with await home() as other:
        results = await asyncio.gather(store.create("a"), other.create("a"), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results if isinstance(result, Exception)) in (
            ["LogExistsError"],
            ["LogLockedError"],
        )
        assert await store.names() == await other.names() == ["a"]
        (made,) = [result for result in results if not isinstance(result, BaseException)]
        await made.append(b"x")
        assert await content(await other.open_log("a", read_only=True)) == [b"x"]
        await made.delete()
        assert await other.names() == []
