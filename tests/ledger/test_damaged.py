"""Damaged local logs: whole records can be read, lost records are reported, and nothing is changed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from pulsar_nack import ClosedError, InvalidArgumentError
from pulsar_nack.errors import LogCorruptedError, LogLockedError, LogNotFoundError, LogStorageError, LogVersionError
from pulsar_nack.ledger import LocalLogStore, Log, Record
from pulsar_nack.ledger.format import FRAME_HEADER_SIZE, SEGMENT_HEADER_SIZE, find_seed
from pulsar_nack.ledger.ownership import OwnableStore

GROUPS = ((b"zero", b"one"), (b"two",), (b"three" * 9, b"four", b""), (b"six",), (b"seven", b"eight"))
RECORDS = [record for group in GROUPS for record in group]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalLogStore]:
    """Open a store of logs in a folder."""
    async with await LocalLogStore.open(tmp_path, max_segment_bytes=1024, threads=1) as store:
        yield store


async def write(store: LocalLogStore, groups: Sequence[Sequence[bytes]] = GROUPS, *, seal: bool = False) -> list[Path]:
    """Make a log with a frame for each group; return its files."""
    async with await store.create("a") as log:
        for group in groups:
            await log.append_many(group)
        if seal:
            await log.seal()
    return segments(store)


def segments(store: LocalLogStore) -> list[Path]:
    """Return the files of the log."""
    return sorted((store._directory._folder / "a.log").glob("*.segment"))


def begins(groups: Sequence[Sequence[bytes]] = GROUPS) -> list[int]:
    """Return where each frame begins, and the end."""
    found = [SEGMENT_HEADER_SIZE]
    for group in groups:
        found.append(found[-1] + FRAME_HEADER_SIZE + sum(4 + len(record) for record in group))
    return found


def numbers(frame: int) -> range:
    """Return the numbers of the records of a frame."""
    first = sum(map(len, GROUPS[:frame]))
    return range(first, first + len(GROUPS[frame]))


async def readable(log: Log) -> dict[int, bytes]:
    """Return each record that can be read singly; reading the others must raise LogCorruptedError."""
    found = {}
    for number in range(log.length):
        try:
            (found[number],) = await log.read(number, number)
        except LogCorruptedError:
            continue
    return found


async def gone_through(log: Log) -> tuple[list[Record], LogCorruptedError | None]:
    """Return the records that iterating gives, and the damage that ends it."""
    found: list[Record] = []
    try:
        async for record in log.records():
            found.append(record)  # noqa: PERF401 - what was found before the error counts
    except LogCorruptedError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("frame", range(len(GROUPS) - 1))
async def test_each_byte(frame: int, store: LocalLogStore) -> None:
    """A flipped bit in any byte of any frame except the last loses the records of this frame, and no others."""
    (file,) = await write(store)
    whole = file.read_bytes()
    lost = numbers(frame)
    for at in range(begins()[frame], begins()[frame + 1]):
        damaged = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        file.write_bytes(damaged)
        async with await store.open_damaged("a") as log:
            (damage,) = log.damage
            assert (damage.file, damage.offset, damage.first, damage.last) == (
                file.name,
                begins()[frame],
                lost[0],
                lost[-1],
            )
            assert log.length == len(RECORDS)
            expected = {number: record for number, record in enumerate(RECORDS) if number not in lost}
            assert await readable(log) == expected
            if lost[-1] + 1 < len(RECORDS):
                assert await log.read(lost[-1] + 1, len(RECORDS) - 1) == RECORDS[lost[-1] + 1 :]
        assert file.read_bytes() == damaged


async def test_up_to_the_damage(store: LocalLogStore) -> None:
    """Iterating over a damaged log gives all records before the damage, and then says where it is."""
    (file,) = await write(store)
    data = bytearray(file.read_bytes())
    data[begins()[2] + 30] ^= 1
    file.write_bytes(data)
    async with await store.open_damaged("a") as log:
        found, error = await gone_through(log)
        assert f"{file.name} is damaged at byte {begins()[2]}" in str(error)
        assert found == list(enumerate(RECORDS[:3]))
        assert [record.data async for record in log.records(6)] == RECORDS[6:]
        with pytest.raises(LogCorruptedError):
            await log.read(0, 8)


async def test_damage_up_to_the_end(store: LocalLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If damage reaches the end, at least one record counts as lost, so that reading to the end meets it."""
    monkeypatch.setattr(
        "pulsar_nack.ledger.segments.MAX_BODY", 1 << 18
    )  # what is longer than any frame need not be 16 MiB
    (file,) = await write(store)
    whole = file.read_bytes()
    at = begins()
    for name, data, length in (
        ("heads", whole[: at[3]] + b"?" * 30 + whole[at[3] + 30 : at[4]] + b"?" * 40 + bytes(1 << 19), 7),
        ("frame missing", whole[: at[1]] + whole[at[2] : at[3]] + b"?" * (1 << 19), 7),
    ):
        file.write_bytes(data)
        async with await store.open_damaged("a") as log:
            assert log.length == length, name
            with pytest.raises(LogCorruptedError):
                await log.read(log.length - 1, log.length - 1)
            assert await log.read(0, 1) == RECORDS[:2]


async def test_torn_end_is_no_damage(store: LocalLogStore) -> None:
    """A crash's torn end counts neither as damage nor as records, and is left where it is."""
    (file,) = await write(store)
    data = bytearray(file.read_bytes()[:-3])
    data[begins()[1] + 2] ^= 1
    file.write_bytes(data)
    async with await store.open_damaged("a") as log:
        assert [(damage.first, damage.last) for damage in log.damage] == [(2, 2)]
        assert log.length == 7
    assert file.read_bytes() == data


@pytest.mark.parametrize("at", range(SEGMENT_HEADER_SIZE))
async def test_header(at: int, store: LocalLogStore) -> None:
    """A damaged segment header loses no record: the seed is recovered from the rest of the file."""
    (file,) = await write(store, seal=True)
    data = bytearray(file.read_bytes())
    data[at] ^= 0x81
    file.write_bytes(data)
    async with await store.open_damaged("a") as log:
        ((_, offset, first, last, _),) = log.damage
        assert (offset, first, last) == (0, 0, -1)
        assert [record.data async for record in log.records()] == RECORDS
        assert log.is_sealed


async def test_header_and_first_frame(store: LocalLogStore) -> None:
    """A segment whose header and first frame are damaged is lost as a whole; other segments are not."""
    groups = [[b"%03d" % number * 100] for number in range(12)]
    files = await write(store, groups)
    firsts = [int(file.name[:20]) for file in files]
    data = bytearray(files[1].read_bytes())
    data[16] ^= 1
    data[SEGMENT_HEADER_SIZE + 3] ^= 1
    files[1].write_bytes(data)
    async with await store.open_damaged("a") as log:
        ((file, _, first, last, _),) = log.damage
        assert (file, first, last) == (files[1].name, firsts[1], firsts[2] - 1)
        assert sorted(await readable(log)) == [number for number in range(12) if not first <= number <= last]


async def test_missing_files(store: LocalLogStore) -> None:
    """Missing files, at the beginning, in the middle or all of them, are reported, and the others can be read."""
    files = await write(store, [[b"%03d" % number * 100] for number in range(12)])
    firsts = [int(file.name[:20]) for file in files]
    kept = [file.read_bytes() for file in files]
    for gone in (0, 1):
        files[gone].unlink()
        async with await store.open_damaged("a") as log:
            ((_, _, first, last, reason),) = log.damage
            assert (first, last) == (firsts[gone], firsts[gone + 1] - 1)
            assert ("missing" in reason) is (gone == 0)
            assert sorted(await readable(log)) == [number for number in range(12) if not first <= number <= last]
            with pytest.raises(LogCorruptedError):
                await log.read(0, 11)
        files[gone].write_bytes(kept[gone])
    for file in files:
        file.unlink()
    async with await store.open_damaged("a") as log:
        assert log.length == 1
        with pytest.raises(LogCorruptedError, match="missing"):
            await log.read(0, 0)


async def test_all_segments_are_looked_through(store: LocalLogStore) -> None:
    """Damage in any file is reported, even in files that a normal opening does not read."""
    files = await write(store, [[b"%03d" % number * 100] for number in range(12)])
    for file in (files[0], files[-1]):
        data = bytearray(file.read_bytes())
        data[SEGMENT_HEADER_SIZE + 1] ^= 1
        file.write_bytes(data)
    async with await store.open_damaged("a") as log:
        assert [damage.file for damage in log.damage] in ([files[0].name, files[-1].name], [files[0].name])


async def test_behind_damage_of_an_earlier_file(store: LocalLogStore) -> None:
    """A normally opened log gives the records before and after damage in an earlier file."""
    files = await write(store, [[b"%03d" % number * 100] for number in range(12)])
    data = bytearray(files[0].read_bytes())
    second = SEGMENT_HEADER_SIZE + FRAME_HEADER_SIZE + 304
    data[second + 2] ^= 1
    files[0].write_bytes(data)
    async with await store.open_log("a") as log:
        assert await log.read(0, 0) == [b"000" * 100]
        assert await log.read(2, 11) == [b"%03d" % number * 100 for number in range(2, 12)]
        for _ in range(2):
            with pytest.raises(LogCorruptedError, match=f"byte {second}"):
                await log.read(1, 1)
        found, error = await gone_through(log)
        assert (found, error is None) == ([(0, b"000" * 100)], False)
        assert await log.append(b"more") == 12


async def test_is_owned_and_not_changed(store: LocalLogStore, tmp_path: Path) -> None:
    """A damaged log is locked while it is open; it cannot be appended to or sealed, and can be deleted."""
    (file,) = await write(store)
    data = bytearray(file.read_bytes())
    data[begins()[1]] ^= 1
    file.write_bytes(data)
    assert isinstance(store, OwnableStore)
    log = await store.open_damaged("a")
    assert isinstance(log, Log)
    async with await LocalLogStore.open(tmp_path) as other:
        for opening in (other.open_damaged, other.open_log):
            with pytest.raises(LogLockedError):
                await opening("a")
    for change in (log.append(b"x"), log.seal()):
        with pytest.raises(LogStorageError, match="it is damaged, and open for reading only"):
            await change
    await log.aclose()
    with pytest.raises(ClosedError):
        await log.read(0, 0)
    assert file.read_bytes() == data
    await (await store.open_damaged("a")).delete()
    assert await store.names() == []


async def test_whole_log(store: LocalLogStore) -> None:
    """An undamaged log can be opened in this way too: no damage is reported, and nothing can be appended."""
    await write(store, seal=True)
    async with await store.open_damaged("a") as log:
        assert not log.damage
        assert [record.data async for record in log.records()] == RECORDS
        with pytest.raises(LogStorageError, match="reading only"):
            await log.append(b"x")


async def test_refused(store: LocalLogStore) -> None:
    """A missing log, an invalid name, and a log of a later release raise the same errors as a normal opening."""
    with pytest.raises(LogNotFoundError):
        await store.open_damaged("a")
    with pytest.raises(InvalidArgumentError, match="name"):
        await store.open_damaged("../a")
    (file,) = await write(store)
    data = file.read_bytes()
    newer = data[:4] + b"\0\2" + data[6 : SEGMENT_HEADER_SIZE - 4]
    file.write_bytes(newer + crc32(newer).to_bytes(4, "big") + data[SEGMENT_HEADER_SIZE:])
    with pytest.raises(LogVersionError, match="version 2"):
        await store.open_damaged("a")
    await (await store.create("b")).aclose()  # nothing stays locked


async def test_bytes_after_the_seal(store: LocalLogStore) -> None:
    """Bytes after the seal are reported as damage that loses no record."""
    (file,) = await write(store, seal=True)
    file.write_bytes(file.read_bytes() + b"x")
    async with await store.open_damaged("a") as log:
        assert [(damage.first, damage.last, damage.reason) for damage in log.damage] == [(9, 8, "bytes after the seal")]
        assert await log.read(0, 8) == RECORDS


@pytest.mark.parametrize("seed", range(30))
async def test_at_random(seed: int, store: LocalLogStore) -> None:
    """With any changed, inserted or removed bytes, a record that can be read is the one written there."""
    chance = random.Random(seed)
    groups = [
        [chance.randbytes(chance.choice((0, 3, 90))) for _ in range(chance.randint(1, 5))]
        for _ in range(chance.randint(1, 25))
    ]
    records = [record for group in groups for record in group]
    files = await write(store, groups, seal=chance.random() < 0.3)
    for _ in range(chance.randint(1, 4)):
        file = chance.choice(files)
        data = file.read_bytes()
        at, size = chance.randrange(len(data)), chance.choice((0, 1, 4, 30))
        instead = chance.randbytes(chance.choice((size, size, 0, 7))) if chance.random() < 0.7 else bytes(size)
        file.write_bytes(data[:at] + instead + data[at + size :])
    before = [file.read_bytes() for file in files]
    async with await store.open_damaged("a") as log:
        found = await readable(log)
        lost = {number for each in log.damage for number in range(each.first, each.last + 1)}
        assert found.keys().isdisjoint(lost)
        assert found.keys() | lost == set(range(log.length))
        assert all(records[number] == data for number, data in found.items())
    assert [file.read_bytes() for file in files] == before


def test_an_unknown_seed() -> None:
    """The seed of a segment that lost nearly all its bytes cannot be recovered."""
    zeros = b"???" + bytes(SEGMENT_HEADER_SIZE - 7) + b"????" + bytes(100)
    for data in (b"", b"PNLG", bytes(SEGMENT_HEADER_SIZE), bytes(100), zeros, b"?" * 100):
        assert find_seed(data, 0, "a") is None


async def test_large_damage_takes_bounded_time(store: LocalLogStore) -> None:
    """Reading each of many lost records in a large damaged frame raises at once, and later records are found."""
    async with await store.create("a") as log:
        await log.append_many([b"%05d" % number * 20 for number in range(20_000)])
        await log.append(b"behind")
        await log.append(b"last")
    file, *_ = segments(store)
    data = bytearray(file.read_bytes())
    data[SEGMENT_HEADER_SIZE + 1] ^= 1
    file.write_bytes(data)
    async with await store.open_damaged("a") as log:
        for number in range(0, 20_000, 50):
            with pytest.raises(LogCorruptedError):
                await log.read(number, number)
        assert await log.read(20_000, 20_001) == [b"behind", b"last"]


async def test_swapped_segments(store: LocalLogStore, tmp_path: Path) -> None:
    """O26: segment files that were swapped between two logs are damage when opened; none of their records is read."""
    for swap in (0, 1, 2):
        names = f"a{swap}", f"b{swap}"
        for name in names:
            async with await store.create(name) as log:
                for number in range(30):
                    await log.append(name.encode() * (number + 30))
        one, other = (sorted((tmp_path / f"{name}.log").iterdir())[-1 if swap == 2 else swap] for name in names)
        assert one.name == other.name
        kept = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(kept)
        for name in names:
            for read_only in (False, True):
                with pytest.raises(LogCorruptedError, match=f"log {name}: {one.name} .*a segment of another log"):
                    await store.open_log(name, read_only=read_only)
            async with await store.open_damaged(name) as log:
                found = await readable(log)
                assert all(data == name.encode() * (number + 30) for number, data in found.items())
                assert [each.reason for each in log.damage] == ["it is a segment of another log"]
