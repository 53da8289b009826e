"""K25 with damage in the files themselves: any byte of any frame of a cursor's log."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from pulsar_nack import Position
from pulsar_nack.cursor import Cursor
from pulsar_nack.cursor.format._marker import decode_marker
from pulsar_nack.errors import LogLockedError
from pulsar_nack.ledger import LocalLogStore, ObjectLogStore
from pulsar_nack.ledger.format import FRAME_HEADER_SIZE, SEGMENT_HEADER_SIZE
from pulsar_nack.testing import FaultyFiles, MemoryFiles
from tests.tiers import sample

from .stage import FOLDER, Home, acked, config_of, memory_home, positions

LEDGERS = dict.fromkeys((1, 2, 3, 4), 40)
LOG = "cursor-0000000001"
FLUSHES: Sequence[Mapping[int, Sequence[int]]] = (
    {1: (3, 5), 2: (7,)},
    {3: (2, 9)},
    {1: (8,)},
    {2: (10,), 3: (12,)},
    {4: (1, 3, 5)},
    {3: (20, 22)},
    {1: (12,)},
)
"""The entries acknowledged before each flush, by ledger."""

State = tuple[Position, list[tuple[int, int]]]


@dataclass
class Frame:
    """A frame of the log: its place, and its records."""

    begin: int
    end: int
    records: range


@dataclass
class Written:
    """A written log: its files, what each flush made durable, and the frames that this needs."""

    files: dict[str, bytes]
    states: list[State]
    frames: list[Frame]
    needed: list[set[int]]

    @property
    def segment(self) -> str:
        """Return the name of the only segment."""
        (name,) = (name for name in self.files if name.startswith(f"{LOG}.log/"))
        return name

    def usable(self, damaged: set[int]) -> State | None:
        """Return the last state that needs none of these frames."""
        for state, needed in zip(reversed(self.states), reversed(self.needed), strict=True):
            if needed.isdisjoint(damaged):
                return state
        return None

    def lay_out(self, folder: Path, data: bytes) -> Path:
        """Create the folder, with these bytes for the segment; return the segment's file."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data if name == self.segment else content)
        return folder / self.segment


async def state_of(cursor: Cursor) -> State:
    """Return a cursor's state."""
    return cursor.mark_delete_position, await acked(cursor)


async def write(folder: Path) -> Written:
    """Write a log of several flushes, and read its frames."""
    states = []
    async with await Cursor.open_local(folder, LEDGERS, config_of()) as cursor:
        for flush in FLUSHES:
            await cursor.acknowledge([each for ledger in flush for each in positions(ledger, flush[ledger])])
            await cursor.flush()
            states.append(await state_of(cursor))
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix == ".segment"
    }
    written = Written(files, states, [], [])
    written.frames = frames_of(files[written.segment])
    async with await LocalLogStore.open(folder) as store, await store.open_log(LOG, read_only=True) as log:
        records = [record.data async for record in log.records()]
    for frame in written.frames:
        wanted, numbers = [frame.records[-1]], set[int]()
        references: dict[int, Sequence[int]] = {}
        while wanted:
            at = wanted.pop()
            marker = decode_marker([records[at]])
            references = {**marker.references, **references}
            numbers.add(at)
            wanted += [] if marker.base is None else [marker.base]
        numbers |= {number for named in references.values() for number in named}
        written.needed.append({at for at, each in enumerate(written.frames) if not numbers.isdisjoint(each.records)})
    assert len(written.frames) == len(FLUSHES)
    assert any(len(needed) < at for at, needed in enumerate(written.needed))
    return written


def frames_of(data: bytes) -> list[Frame]:
    """Return the frames of a segment, by their own headers."""
    frames, at = [], SEGMENT_HEADER_SIZE
    while at < len(data):
        first, length, count = (int.from_bytes(data[at + a : at + b], "big") for a, b in ((0, 8), (8, 12), (12, 16)))
        frames.append(Frame(at, at + FRAME_HEADER_SIZE + length, range(first, first + count)))
        at = frames[-1].end
    return frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the log with which all cases begin."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture
async def written(folder: Path) -> Written:
    """Return the log with which all cases begin; it is written once."""
    if folder not in _WRITTEN:
        _WRITTEN[folder] = await write(folder)
    return _WRITTEN[folder]


_WRITTEN: dict[Path, Written] = {}


def flipped(data: bytes, *places: int, bits: int = 0x10) -> bytes:
    """Return the bytes with some bits of some bytes changed."""
    changed = bytearray(data)
    for at in places:
        changed[at] ^= bits
    return bytes(changed)


async def live_on(folder: Path, found: State | None) -> None:
    """Open a cursor three times, acknowledge and flush each time: only what was found and what is new counts."""
    mark_delete, entries = found or (Position(1, -1), [])
    for more in range(3):
        async with await Cursor.open_local(folder, LEDGERS, config_of()) as cursor:
            assert await state_of(cursor) == (mark_delete, entries)
            await cursor.acknowledge([Position(4, 30 + 2 * more)])
            await cursor.flush()
            entries = sorted([*entries, (4, 30 + 2 * more)])
            assert await state_of(cursor) == (mark_delete, entries)


WHERE = ("number", "length", "count", "head crc", "body crc", "body", "middle", "end")


def place(frame: Frame, where: str) -> int:
    """Return the offset of a byte of a frame."""
    offsets = {"number": 7, "length": 9, "count": 15, "head crc": 18, "body crc": 21, "body": FRAME_HEADER_SIZE}
    if where == "middle":
        return (frame.begin + frame.end) // 2
    return frame.end - 1 if where == "end" else frame.begin + offsets[where]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", range(len(FLUSHES)))
async def test_a_byte_of_a_frame(
    number: int, where: str, written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """K25: a byte of a frame is damaged: the last marker that does not need it counts; the log is kept as it is."""
    damaged = flipped(written.files[written.segment], place(written.frames[number], where))
    file = written.lay_out(tmp_path, damaged)
    await live_on(tmp_path, written.usable({number}))
    if number < len(FLUSHES) - 1:
        assert file.read_bytes() == damaged
        warning = next(record for record in caplog.records if record.levelno == logging.WARNING)
        assert f"{file.name} at byte {written.frames[number].begin}" in warning.getMessage()
        lost = written.frames[number].records
        assert f"(records {lost[0]} to {lost[-1]} are lost)" in warning.getMessage()


@pytest.mark.parametrize("at", range(SEGMENT_HEADER_SIZE))
async def test_a_byte_of_the_header(at: int, written: Written, tmp_path: Path) -> None:
    """K25: a byte of the segment's header is damaged: no record is lost, and nothing of the log is changed."""
    damaged = flipped(written.files[written.segment], at)
    file = written.lay_out(tmp_path, damaged)
    await live_on(tmp_path, written.states[-1])
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("seed", range(40))
async def test_damage_at_random(seed: int, written: Written, tmp_path: Path) -> None:
    """K25: bytes of several frames are damaged, some are zeros: never more than a whole marker's state counts."""
    chance = random.Random(seed)
    whole = written.files[written.segment]
    places = [chance.randrange(SEGMENT_HEADER_SIZE, len(whole)) for _ in range(chance.randint(1, 4))]
    damaged = flipped(whole, *set(places), bits=chance.randint(1, 255))
    if chance.random() < 0.3:
        begin = chance.choice(places)
        end = min(begin + chance.choice((1, 30, 200)), len(whole))
        damaged = damaged[:begin] + bytes(end - begin) + damaged[end:]
    lost = {
        at for at, each in enumerate(written.frames) if damaged[each.begin : each.end] != whole[each.begin : each.end]
    }
    written.lay_out(tmp_path, damaged)
    snapshot = (Position(1, -1), list[tuple[int, int]]())
    await live_on(tmp_path, written.usable(lost) or snapshot)


@pytest.mark.parametrize("kind", ["out", "in"])
async def test_bytes_are_missing_or_too_many(kind: str, written: Written, tmp_path: Path) -> None:
    """K25: removed or inserted bytes damage their own frame and no others."""
    whole = written.files[written.segment]
    for number in range(len(FLUSHES) - 1):
        at = place(written.frames[number], "middle")
        damaged = whole[:at] + whole[at + 1 :] if kind == "out" else whole[:at] + b"more" + whole[at:]
        written.lay_out(tmp_path / f"{number}", damaged)
        await live_on(tmp_path / f"{number}", written.usable({number}))


async def test_nothing_of_the_log_is_left(written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """K26: all of a log is damaged, or its file is gone: the snapshot counts, and the cursor continues in a new log."""
    whole = written.files[written.segment]
    for name, damaged in (("noise", bytes(len(whole))), ("empty", b""), ("gone", None)):
        folder = tmp_path / name
        file = written.lay_out(folder, damaged or b"")
        if damaged is None:
            file.unlink()
        await live_on(folder, None)
        assert (file.read_bytes() if file.exists() else None) == damaged
    assert "no marker of the cursor cursor can be used" in caplog.text


async def test_damaged_log_is_owned(written: Written, tmp_path: Path) -> None:
    """A cursor with a damaged log is locked like any other, before and after it continues in a new log."""
    written.lay_out(tmp_path, flipped(written.files[written.segment], written.frames[1].begin))
    async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
        for _ in range(2):
            with pytest.raises(LogLockedError, match="open already"):
                await Cursor.open_local(tmp_path, LEDGERS, config_of())
            await cursor.acknowledge([Position(4, 30)])
            await cursor.flush()


async def test_opened_and_not_used(written: Written, tmp_path: Path) -> None:
    """K25: a cursor that finds its log damaged and is closed again has changed nothing."""
    damaged = flipped(written.files[written.segment], written.frames[2].begin)
    written.lay_out(tmp_path, damaged)
    for _ in range(3):
        async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
            assert await state_of(cursor) == written.usable({2})
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.segment")}
    assert files == {**written.files, written.segment: damaged}


async def test_old_log_whole_again(written: Written, tmp_path: Path) -> None:
    """K25: a damaged log that the cursor has left no longer counts when it can be read again."""
    whole = written.files[written.segment]
    file = written.lay_out(tmp_path, flipped(whole, *(frame.begin for frame in written.frames[2:-1])))
    async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
        await cursor.acknowledge([Position(4, 30)])
        await cursor.flush()
        after = await state_of(cursor)
    file.write_bytes(whole)
    async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
        assert await state_of(cursor) == after


@pytest.mark.parametrize("number", range(len(FLUSHES)))
async def test_small_segments(number: int, tmp_path: Path) -> None:
    """K25: the damaged frame may be in any file of the log."""
    async with (
        await LocalLogStore.open(tmp_path, max_segment_bytes=1024) as store,
        await Cursor.open(store, LEDGERS, config_of()) as cursor,
    ):
        states = []
        for more in range(40):
            await cursor.acknowledge([Position(1 + more % 3, more % 40)])
            await cursor.flush()
            states.append(await state_of(cursor))
    files = sorted((tmp_path / f"{LOG}.log").iterdir())
    assert len(files) > 3
    frames = frames_of(files[1].read_bytes())
    files[1].write_bytes(flipped(files[1].read_bytes(), place(frames[number % len(frames)], WHERE[number])))
    async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
        found = await state_of(cursor)
        assert found in [(Position(1, -1), []), *states]
        await cursor.acknowledge([Position(4, 30)])
    async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
        assert await state_of(cursor) == (found[0], [*found[1], (4, 30)])


async def test_evicted_ledgers_of_a_damaged_log(written: Written, tmp_path: Path) -> None:
    """K25, K29: evicted ledgers are read from the damaged log, before and after the new one."""
    written.lay_out(tmp_path, flipped(written.files[written.segment], written.frames[2].begin + 20))
    config = config_of(max_individual_ack_cache_bytes_per_cursor=0)
    usable = written.usable({2})
    assert usable is not None
    async with await Cursor.open_local(tmp_path, LEDGERS, config) as cursor:
        assert await state_of(cursor) == usable
        await cursor.acknowledge([Position(4, 30)])
        await cursor.flush()
        assert await state_of(cursor) == (usable[0], [*usable[1], (4, 30)])


@pytest.mark.parametrize("where", [0.1, 0.3, 0.5, 0.7, 0.99])
async def test_objects(where: float) -> None:
    """K25: a byte of any object of a log is damaged: an older marker counts, or the snapshot if it is in a head."""
    store = MemoryStore()
    states: list[State] = [(Position(1, -1), [])]
    home = Home(lambda: ObjectLogStore.open(store, threads=1))
    async with home.cursor(LEDGERS) as cursor:
        for flush in FLUSHES:
            await cursor.acknowledge([each for ledger in flush for each in positions(ledger, flush[ledger])])
            await cursor.flush()
            states.append(await state_of(cursor))
    everything = {meta["path"]: bytes(store.get(meta["path"]).bytes()) for page in store.list() for meta in page}
    objects = {key: data for key, data in everything.items() if f"/{LOG}" in key and "-snapshot" not in key}
    assert len(objects) > len(FLUSHES)
    found = []
    for key, whole in objects.items():
        damaged = MemoryStore()
        for each, data in everything.items():
            damaged.put(each, data)
        damaged.put(key, flipped(whole, int(where * (len(whole) - 1))))
        other = Home(partial(ObjectLogStore.open, damaged, threads=1))
        async with other.cursor(LEDGERS) as cursor:
            found.append(await state_of(cursor))
            assert found[-1] in states
            await cursor.acknowledge([Position(4, 30)])
        async with other.cursor(LEDGERS) as cursor:
            assert await state_of(cursor) == (found[-1][0], [*found[-1][1], (4, 30)])
    if where > 0.6:  # in the records, not in the head that says how many there are; but the first object is all head
        assert [states.index(each) for each in found] == [0, 7, 7, 7, 3, 4, 5, 6]


async def test_damaged_snapshots(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """K26: with no marker left, the last whole snapshot counts, also after damage in the log of snapshots."""
    for last in (3, 6, 9):
        async with await Cursor.open_local(tmp_path, LEDGERS, config_of()) as cursor:
            await cursor.acknowledge_cumulative(Position(1, last))
            await cursor.acknowledge([Position(2, 5)])
    (markers,) = (tmp_path / f"{LOG}.log").iterdir()
    markers.write_bytes(bytes(400))
    (snapshots,) = (tmp_path / f"{LOG}-snapshot.log").iterdir()
    whole = snapshots.read_bytes()
    frames = frames_of(whole)
    assert len(frames) > 2
    damaged = flipped(whole, *(frame.begin for frame in frames[:-1]))
    snapshots.write_bytes(damaged)
    await live_on(tmp_path, (Position(1, 9), []))
    assert "a cursor's snapshots is damaged" in caplog.text
    assert snapshots.read_bytes() == damaged


async def test_crash_while_it_goes_on_in_a_new_log(written: Written) -> None:
    """K25: a crash at any operation from opening a damaged log to its first flush leaves one of the two states."""
    number = 2
    damaged = flipped(written.files[written.segment], place(written.frames[number], "body"))
    usable = written.usable({number})
    assert usable is not None
    after = (usable[0], [*usable[1], (4, 30)])
    memory = await laid_out_in_memory(written, damaged)
    files = FaultyFiles(memory)
    is_durable = False
    crashes: list[tuple[MemoryFiles, bool]] = []
    files.watch(lambda *_: crashes.append((memory.fork(random.Random(len(crashes))).after_crash(), is_durable)))
    async with memory_home(files).cursor(LEDGERS) as cursor:
        await cursor.acknowledge([Position(4, 30)])
        await cursor.flush()
        is_durable = True
    assert len(crashes) > 60  # before and after each of thirty operations
    outcomes = set()
    for left, was_durable in [crashes[0], *sample(crashes[1:-1], most=4), crashes[-1]]:
        for _ in range(2):
            async with memory_home(FaultyFiles(left)).cursor(LEDGERS) as cursor:
                found = await state_of(cursor)
                assert found in ([after] if was_durable else [usable, after])
                outcomes.add(found == after)
    assert outcomes == {False, True}


async def laid_out_in_memory(written: Written, data: bytes) -> MemoryFiles:
    """Return files in memory with the log of all cases, these bytes for its segment."""
    files = MemoryFiles()
    for name, content in written.files.items():
        path = FOLDER / name
        for folder in (*reversed(path.parent.parents), path.parent):
            if not files.is_folder(folder):
                files.make_folder(folder)
                files.sync_folder(folder.parent)
        descriptor = files.create(path)
        files.write(descriptor, memoryview(data if name == written.segment else content), 0)
        files.sync(descriptor)
        files.close(descriptor)
        files.sync_folder(path.parent)
    return files
