"""Inspections of folders that are whole, damaged, being written, or foreign."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, Cursor, CursorConfig, InvalidArgumentError, LocalTopic
from pulsar_nack.delayed.format import SNAPSHOT_LOG_NAME
from pulsar_nack.errors import LedgerError, LogStorageError
from pulsar_nack.inspection import DelayedReport, FolderReport, StoreReport, inspect_folder
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.format import FRAME_HEADER_SIZE, SEGMENT_HEADER_SIZE
from pulsar_nack.testing import ManualClock
from tests.cursor.test_codec_markers import strings
from tests.cursor.wire_bytes import marker_record, number
from tests.patience import patience

from .folders import BUCKETS, everything, segments, write_buckets, write_nacks, write_plain

FRAME = FRAME_HEADER_SIZE + 4 + 50
"""The bytes of a record of :func:`write_plain`."""


def only(report: FolderReport) -> StoreReport:
    """Return the only store of a folder."""
    (store,) = report.stores
    return store


def kinds(report: FolderReport) -> list[str]:
    """Return the kinds of damage."""
    return [damage.kind for damage in report.damage]


# -- contents --------------------------------------------------------------------------------------------------------


async def test_buckets(tmp_path: Path) -> None:
    """A bucket tracker's folder: its cursor, and each bucket with its segments, counts and times."""
    await write_buckets(tmp_path)
    report = inspect_folder(tmp_path)
    assert not report.is_damaged
    (delayed,) = only(report).delayed
    assert delayed.mark_delete == (6, 5)
    assert delayed.properties["mine"] == "yes"
    assert [bucket.messages for bucket in delayed.buckets] == [2_000, 2_000]
    first = min(delayed.buckets, key=lambda bucket: bucket.first_at or 0)
    assert (first.first_at, first.last_at) == (60_000, 60_000 + 10 * 1_999)
    assert [(each.messages, each.ledgers) for each in first.segments] == [(500, 1)] * 4
    assert first.segments[1].first_at == 60_000 + 10 * 500
    assert {bucket.key for bucket in delayed.buckets} < set(delayed.properties)
    assert {log.kind for log in only(report).logs} == {"delayed cursor", "snapshot"}


async def test_nacks(tmp_path: Path) -> None:
    """A consumer's durable state: how many messages wait, of which ledgers, and from when to when."""
    await write_nacks(tmp_path)
    nacks = only(inspect_folder(tmp_path)).nacks
    assert nacks is not None
    assert (nacks.unsettled, nacks.acknowledged) == (10, 5)
    assert nacks.first_at is not None
    assert nacks.last_at is not None
    assert 8_000 <= nacks.last_at - nacks.first_at <= 15_000
    assert [(each.ledger, each.messages) for each in nacks.ledgers] == [(1, 10)]
    assert nacks.logs == ("nacks-0000000001",)
    assert nacks.ignored == ()


async def test_nacks_after_a_compaction(tmp_path: Path) -> None:
    """After a compaction the snapshot and later changes count; an unfinished snapshot and older logs do not."""
    await write_nacks(tmp_path)
    async with await LocalLogStore.open(tmp_path) as store:
        old = await store.open_log("nacks-0000000001")
        records = [record.data async for record in old.records()]
        await old.seal()
        base = await store.create("nacks-0000000001-base")
        await base.append_many(records[:6])
        await base.seal()
        await store.create("nacks-0000000002")
        unfinished = await store.create("nacks-0000000002-base")
        await unfinished.append(b"rubbish")
    report = inspect_folder(tmp_path)
    nacks = only(report).nacks
    assert nacks is not None
    assert nacks.logs == ("nacks-0000000001-base", "nacks-0000000002")
    assert nacks.ignored == ("nacks-0000000001", "nacks-0000000002-base")
    assert 0 < nacks.unsettled < 10
    assert not report.is_damaged


async def test_plain_logs(tmp_path: Path) -> None:
    """Any other log: records, size, files, and whether it is sealed."""
    await write_plain(tmp_path, seal=True)
    (log,) = only(inspect_folder(tmp_path)).logs
    assert (log.name, log.kind, log.records, log.is_sealed) == ("events", "plain", 40, True)
    assert [each.first for each in log.segments] == [0, *(each.first for each in log.segments[1:])]
    assert sum(each.records for each in log.segments) == 40
    assert log.bytes == sum(each.stat().st_size for each in segments(tmp_path, "events"))


async def test_folders_below(tmp_path: Path) -> None:
    """Folders in a folder are inspected too, links are not followed; one log's own folder is accepted as well."""
    await write_plain(tmp_path / "a" / "b")
    await write_plain(tmp_path / "c", name="other")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    report = inspect_folder(tmp_path)
    assert [Path(store.path).name for store in report.stores] == ["b", "c"]
    one = only(inspect_folder(tmp_path / "c" / "other.log"))
    assert [log.name for log in one.logs] == ["other"]


async def test_leftovers_and_foreign_files(tmp_path: Path) -> None:
    """Leftovers of a crash and foreign files are named and count as no damage."""
    await write_plain(tmp_path)
    (tmp_path / "gone.log.gone").mkdir()
    (tmp_path / "half.log.new").mkdir()
    (tmp_path / "free.lock").touch()
    (tmp_path / "README").write_text("mine")
    (tmp_path / "events.log" / "notes.txt").write_text("mine")
    report = inspect_folder(tmp_path)
    assert only(report).leftovers == ("free.lock", "gone.log.gone", "half.log.new")
    assert set(only(report).foreign) == {"README", "events.log/notes.txt"}
    assert not report.is_damaged


async def test_as_json(tmp_path: Path) -> None:
    """Everything can be written as JSON, and is equal when read."""
    await write_buckets(tmp_path / "delayed")
    await write_nacks(tmp_path / "nacks")
    stored = inspect_folder(tmp_path).as_dict()
    again = json.loads(json.dumps(stored))
    assert again["is_damaged"] is False
    assert again["stores"][0]["delayed"][0]["mark_delete"] == [6, 5]
    assert again["stores"][1]["nacks"]["unsettled"] == 10


# -- nothing is changed ----------------------------------------------------------------------------------------------


async def test_nothing_is_changed(tmp_path: Path) -> None:
    """No byte, time or name changes, also in damaged folders; no file is opened for writing."""
    await write_buckets(tmp_path / "delayed")
    await write_nacks(tmp_path / "nacks")
    await write_plain(tmp_path / "plain")
    (tmp_path / "plain" / "half.log.new").mkdir()
    file = segments(tmp_path / "plain", "events")[-1]
    file.write_bytes(file.read_bytes()[:-5])
    before, acts = everything(tmp_path), []
    is_watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if not is_watching:
            return
        if event in {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "fcntl.flock"}:
            acts.append(event)
        if event == "open" and isinstance(flags := arguments[2], int) and flags & (os.O_WRONLY | os.O_RDWR):
            acts.append(f"open {arguments[0]!s}")

    sys.addaudithook(watch)
    try:
        report = inspect_folder(tmp_path)
    finally:
        is_watching = False
    assert kinds(report) == ["torn"]
    assert acts == []
    assert everything(tmp_path) == before


@contextmanager
def watched(folder: Path) -> Iterator[list[FolderReport]]:
    """Inspect a folder in a thread repeatedly; nothing must fail, or be reported as damaged."""
    reports: list[FolderReport] = []
    errors: list[Exception] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            try:
                reports.append(inspect_folder(folder))
                is_over.wait(0.01)
            except Exception as error:  # noqa: BLE001 - reported below
                errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield reports
    finally:
        is_over.set()
        thread.join(patience(20))
    assert errors == []
    assert [list(report.damage) for report in reports if report.is_damaged] == []


async def test_beside_a_cursor(tmp_path: Path) -> None:
    """While a cursor writes and rolls over, its reports are valid, and its position only grows."""
    config = CursorConfig(flush_interval=3_600, rollover_bytes=2_000, max_entry_bytes=1_024)
    async with await Cursor.open_local(tmp_path, {1: 10_000, 2: 10_000}, config) as cursor:
        await cursor.acknowledge([(1, 0)])
        await cursor.flush()
        with watched(tmp_path) as reports:
            for entry in range(1, 120):
                await cursor.acknowledge([(1, entry), (2, 7 * entry % 5_000)])
                await cursor.flush()
            while len(reports) < 5:
                await asyncio.sleep(0.01)
        assert cursor.statistics().rollovers > 3
    places = [each.mark_delete for report in reports for each in only(report).cursors]
    assert places == sorted(places)
    assert len(places) == len(reports)


async def test_beside_a_bucket_tracker(tmp_path: Path) -> None:
    """While buckets are stored, merged and deleted, nothing is reported as missing."""
    config = BUCKETS.model_copy(update={"delayed_delivery_max_num_buckets": 2})
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path, config, clock=ManualClock(0)) as tracker:
        with watched(tmp_path) as reports:
            for ledger in range(1, 9):
                for entry in range(1_500):
                    tracker.add_message(ledger, entry, 60_000 + entry)
                await tracker.wait_until_idle()
            while len(reports) < 5:
                await asyncio.sleep(0.01)
            await tracker.clear()
            await tracker.wait_until_idle()


async def test_beside_a_writer(tmp_path: Path) -> None:
    """While logs are written, roll over, are created and deleted, nothing is reported as damaged."""
    await write_plain(tmp_path, 1)
    with watched(tmp_path) as reports:
        async with await LocalLogStore.open(tmp_path, max_segment_bytes=2_000) as store:
            log = await store.open_log("events")
            for number in range(150):
                await log.append(b"x" * (number * 37 % 900))
                if number % 10 == 0:
                    other = await store.create(f"other-{number}")
                    await other.append(b"y")
                    await other.delete()
            while len(reports) < 5:
                await asyncio.sleep(0.01)
    counts = [next(log.records for log in only(report).logs if log.name == "events") for report in reports]
    assert counts == sorted(counts)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything")
async def test_without_rights(tmp_path: Path) -> None:
    """A file without read permission is reported, and the rest is inspected."""
    await write_plain(tmp_path)
    segments(tmp_path, "events")[0].chmod(0)
    assert kinds(inspect_folder(tmp_path)) == ["unreadable"]


# -- damage ----------------------------------------------------------------------------------------------------------


async def opened(folder: Path, name: str) -> int | None:
    """Return how many records the library itself finds, None if it refuses."""
    try:
        async with await LocalLogStore.open(folder) as store, await store.open_log(name, read_only=True) as log:
            return len([record async for record in log.records()])
    except LedgerError:
        return None


async def test_every_torn_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last file that ends anywhere is reported as the library reads it: its records, torn except at a write's end."""
    monkeypatch.setattr("pulsar_nack.inspection._store._PAUSE_S", 0)  # nothing writes here
    await write_plain(tmp_path, 3)
    (file,) = segments(tmp_path, "events")
    whole = file.read_bytes()
    head, frame = SEGMENT_HEADER_SIZE, FRAME
    for length in range(head, len(whole)):
        file.write_bytes(whole[:length])
        report = inspect_folder(tmp_path)
        (log,) = only(report).logs
        assert log.records == (length - head) // frame
        assert kinds(report) == ([] if (length - head) % frame == 0 else ["torn"])
    assert log.records == 2


async def test_every_flipped_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong byte is found wherever it is, the good records before it are counted, and nothing raises."""
    monkeypatch.setattr("pulsar_nack.inspection._store._PAUSE_S", 0)  # nothing writes here
    await write_plain(tmp_path, 3)
    (file,) = segments(tmp_path, "events")
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        report = inspect_folder(tmp_path)
        (log,) = only(report).logs
        (damage,) = report.damage
        assert log.records == max((at - SEGMENT_HEADER_SIZE) // FRAME, 0)
        assert damage.offset is not None
        assert damage.offset <= at
        if at % 40 == 0:
            assert await opened(tmp_path, "events") == (log.records if damage.kind == "torn" else None)


async def test_damage_in_the_middle(tmp_path: Path) -> None:
    """Damage in one file ends that file and is located; the records of the other files are still counted."""
    await write_plain(tmp_path, 40)
    first, second, *_ = segments(tmp_path, "events")
    data = bytearray(second.read_bytes())
    data[SEGMENT_HEADER_SIZE + FRAME * 2 + 30] ^= 1
    second.write_bytes(data)
    report = inspect_folder(tmp_path)
    (damage,) = report.damage
    assert (damage.log, damage.file, damage.offset, damage.kind) == (
        "events",
        second.name,
        SEGMENT_HEADER_SIZE + FRAME * 2,
        "damaged",
    )
    (log,) = only(report).logs
    assert log.segments[1].records == 2
    assert log.records == 40 - (log.segments[2].first - log.segments[1].first) + 2
    second.unlink()
    assert kinds(inspect_folder(tmp_path)) == ["damaged"]  # the first file ends before the third begins
    first.unlink()
    assert kinds(inspect_folder(tmp_path)) == ["missing"]


async def test_swapped_segments(tmp_path: Path) -> None:
    """O26: a segment file of another log is damage, and none of its records is counted."""
    async with await LocalLogStore.open(tmp_path) as store:
        for name in ("one", "two"):
            async with await store.create(name) as log:
                await log.append_many([name.encode()] * 3)
    one, two = (segments(tmp_path, name)[0] for name in ("one", "two"))
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)
    report = inspect_folder(tmp_path)
    reasons = [(each.kind, each.log, each.reason) for each in report.damage]
    assert reasons == [("damaged", name, "it is a segment of another log") for name in ("one", "two")]
    assert [log.records for log in only(report).logs] == [0, 0]


async def test_logs_without_files(tmp_path: Path) -> None:
    """O39: a log of any kind that has lost its first file, or all of them, is a line of damage."""
    whole = tmp_path / "whole"
    await write_buckets(whole / "tracker", 2_100)
    await write_nacks(whole / "nacks")
    await write_plain(whole / "plain")
    async with await Cursor.open_local(whole / "cursor", {5: 100}) as cursor:
        await cursor.acknowledge([(5, 1)])
    async with await LocalTopic.open(whole / "topic") as topic:
        await topic.create_subscription("s")
        await topic.publish(b"x")
    logs = [each.relative_to(whole) for each in whole.rglob("*.log")]
    assert len(logs) >= 8
    for log in logs:
        for files in (slice(1), slice(None)):
            home = tmp_path / "copy"
            shutil.copytree(whole / log.parent, home)
            for file in sorted((home / log.name).iterdir())[files]:
                file.unlink()
            report = inspect_folder(home)
            found = [(each.kind, f"{each.log}.log", each.reason) for each in report.damage]
            assert ("missing", log.name, "the file is missing") in found
            shutil.rmtree(home)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
async def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    """O39: a FIFO or a socket among the files is reported, and neither the inspection nor an opening blocks on it."""
    await write_plain(tmp_path)
    (file,) = segments(tmp_path, "events")[1:2]
    for fifo in (file, tmp_path / "manifest.json", tmp_path / "other", tmp_path / "x.lock", tmp_path / "y.log"):
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
    report = inspect_folder(tmp_path)
    assert [(each.kind, each.file, each.reason) for each in report.damage] == [
        ("unreadable", file.name, "it is not a regular file")
    ]
    assert set(only(report).foreign) == {"manifest.json", "other", "y.log"}
    async with await LocalLogStore.open(tmp_path) as store:
        with pytest.raises(LogStorageError, match="log events: cannot open it: it is not a regular file"):
            await store.open_log("events")


async def test_a_deep_footer(tmp_path: Path) -> None:
    """A footer of sixty thousand brackets is damage for an inspection, and for a tracker, which drops the snapshot."""
    await write_buckets(tmp_path, 2_100)
    async with await LocalLogStore.open(tmp_path) as store:
        (name,) = [each for each in await store.names() if SNAPSHOT_LOG_NAME.fullmatch(each)]
        await store.delete(name)
        async with await store.create(name) as log:
            await log.append_many([b"metadata", b"[" * 60_000])
            await log.seal()
    assert [(each.log, each.kind, each.reason) for each in inspect_folder(tmp_path).damage] == [
        (name, "inconsistent", "its last record is not a footer")
    ]
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path, BUCKETS, clock=ManualClock(0)) as tracker:
        await tracker.wait_until_idle()
        assert (tracker.statistics().damaged, tracker.statistics().is_recovering) == (1, False)


async def test_later_version(tmp_path: Path) -> None:
    """A file of a later release is reported as such."""
    from zlib import crc32

    await write_plain(tmp_path, 1)
    (file,) = segments(tmp_path, "events")
    head = bytearray(file.read_bytes())
    head[4:6] = (9).to_bytes(2, "big")
    end = SEGMENT_HEADER_SIZE - 4
    head[end : end + 4] = crc32(head[:end]).to_bytes(4, "big")
    file.write_bytes(head)
    assert kinds(inspect_folder(tmp_path)) == ["newer"]


async def test_missing_snapshot(tmp_path: Path) -> None:
    """A missing snapshot that the cursor names is reported, and its bucket is missing."""
    await write_buckets(tmp_path)
    gone = next(each for each in sorted(tmp_path.glob("snapshot-*.log")))
    shutil.rmtree(gone)
    report = inspect_folder(tmp_path)
    (damage,) = report.damage
    match = SNAPSHOT_LOG_NAME.fullmatch(gone.stem)
    assert match is not None
    assert (damage.log, damage.kind) == ("delayed.cursor-0000000001", "missing")
    assert match[2] in damage.reason
    (delayed,) = only(report).delayed
    assert [bucket.log for bucket in delayed.buckets].count(None) == 1


async def test_snapshots_that_nothing_names(tmp_path: Path) -> None:
    """Without the cursor's log, or protobuf, snapshots are reported as named by nothing; that is no damage."""
    await write_buckets(tmp_path)
    shutil.rmtree(tmp_path / "delayed.cursor-0000000001.log")
    report = inspect_folder(tmp_path)
    (delayed,) = only(report).delayed
    assert (delayed.cursor, delayed.mark_delete) == (None, None)
    assert [(bucket.key, bucket.messages) for bucket in delayed.buckets] == [(None, 2_000), (None, 2_000)]
    assert not report.is_damaged


async def test_snapshot_that_was_cut(tmp_path: Path) -> None:
    """A named snapshot without its end is reported; its bucket has no counts."""
    await write_buckets(tmp_path)
    log = next(each for each in sorted(tmp_path.glob("snapshot-*.log")))
    (file,) = log.iterdir()
    file.write_bytes(file.read_bytes()[:-24])
    report = inspect_folder(tmp_path)
    assert kinds(report) == ["inconsistent"]
    assert None in [bucket.messages for bucket in only(report).delayed[0].buckets]


async def test_cursor_that_leads_nowhere(tmp_path: Path) -> None:
    """A tracker's cursor whose last record lacks its base, is newer, or is foreign: the one before counts."""
    state = marker_record(5, 3, 4, strings(("a", "1")))
    for record, kind in (
        (marker_record(6, 3, 5, number(1, 7), number(6, 1)), "inconsistent"),
        (marker_record(6, 3, 5, number(1, 1), number(6, 1)), "inconsistent"),
        (marker_record(6, 3, 5, said=number(5, 2)), "newer"),
        (b"[]", "inconsistent"),
    ):
        async with await LocalLogStore.open(tmp_path) as store:
            log = await store.create("delayed.cursor-0000000001")
            await log.append_many([state, record])
            report = inspect_folder(tmp_path)
            assert kinds(report) == [kind]
            assert only(report).delayed == (DelayedReport("cursor", log.name, (3, 4), {"a": "1"}, ()),)
            assert only(report).cursors == ()
            await log.delete()


async def test_a_tracker_that_has_written_nothing(tmp_path: Path) -> None:
    """The cursor of a tracker that has stored nothing yet is reported as such."""
    await (await BucketDelayedDeliveryTracker.open_local(tmp_path)).aclose()
    store = only(inspect_folder(tmp_path))
    assert [log.kind for log in store.logs] == ["delayed cursor"]
    assert store.delayed == (DelayedReport("cursor", "delayed.cursor-0000000001", (0, -1), {}, ()),)


async def test_nacks_with_a_missing_log(tmp_path: Path) -> None:
    """A missing log in the middle, an unsealed one before others, and invalid bytes in one are reported."""
    await write_nacks(tmp_path)
    async with await LocalLogStore.open(tmp_path) as store:
        for name in ("nacks-0000000003", "nacks-0000000004"):
            log = await store.create(name)
            await log.append(b"nonsense")
    assert sorted(kinds(inspect_folder(tmp_path))) == sorted(
        ["missing", "inconsistent", "inconsistent", "newer", "newer"]
    )


# -- foreign files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "s3://bucket/path", 5, None])
def test_no_path(path: object) -> None:
    """An invalid path is refused by name."""
    with pytest.raises(InvalidArgumentError, match="path"):
        inspect_folder(path)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="the path of a local folder"):
        inspect_folder("s3://bucket/path")


def test_unknown_folders(tmp_path: Path) -> None:
    """A missing folder, a file, and a folder with nothing of ours are refused, and nothing is created."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path / "empty"):
        with pytest.raises(InvalidArgumentError, match="path"):
            inspect_folder(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "file"]
