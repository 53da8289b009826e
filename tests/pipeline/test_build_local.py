"""An index that was built at once, and the tracker opened on it; without Spark."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, InvalidArgumentError, Position
from pulsar_nack.cli import main
from pulsar_nack.errors import LogLockedError, LogStorageError
from pulsar_nack.inspection import BuiltReport, inspect_folder
from pulsar_nack.ledger.files import OsFiles
from pulsar_nack.pipeline import _build_folder
from pulsar_nack.testing import ManualClock
from tests.tiers import examples

from .delivering import Row, contents, deliveries, moments, take_all
from .local_build import build_local

SMALL = BucketConfig(
    delayed_delivery_min_index_count_per_bucket=5,
    delayed_delivery_max_indexes_per_bucket_snapshot_segment=3,
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=0.1,
    is_delayed_delivery_deliver_at_time_strict=True,
)
ROWS = st.dictionaries(st.tuples(st.integers(0, 6), st.integers(0, 40)), st.integers(1, 500), max_size=60).map(
    lambda found: [(*position, at) for position, at in found.items()]
)


def build(rows: list[Row], path: Path, config: BucketConfig = SMALL, **options: Any) -> Any:
    """Build an index of some rows."""
    ledgers, entries, times = zip(*rows, strict=True) if rows else ((), (), ())
    return build_local(ledgers, entries, times, path, config, **options)


@pytest.mark.slow
@examples(60)
@given(ROWS, st.booleans())
async def test_delivers_what_a_tracker_fed_by_hand_does(rows: list[Row], is_strict: bool) -> None:
    """The same messages come at the same times, in the same order, as from a tracker that got them one by one."""
    config = SMALL.model_copy(
        update={
            "is_delayed_delivery_deliver_at_time_strict": is_strict,
            "delayed_delivery_tick_time_millis": 0 if is_strict else 20,
        }
    )
    waiting = [row for row in rows if is_strict or row[2] > 20]
    with tempfile.TemporaryDirectory() as folder:
        built = build(waiting, Path(folder) / "built", config)
        assert built.rows == len(waiting)
        found = await deliveries(Path(folder) / "built", config, moments(rows))
        expected = await deliveries(Path(folder) / "fed", config, moments(rows), sorted(waiting))
    assert found == expected


@examples(30)
@given(ROWS, st.integers(1, 30), st.randoms())
def test_bytes_do_not_depend_on_the_order_or_the_division_of_rows(rows: list[Row], unit_rows: int, random: Any) -> None:
    """Rows in another order, divided differently, give the same files byte by byte."""
    mixed = random.sample(rows, len(rows))
    with tempfile.TemporaryDirectory() as folder:
        once, again = Path(folder) / "a", Path(folder) / "b"
        build(rows, once)
        build(mixed, again, unit_rows=unit_rows)
        assert contents(once) == contents(again)


def test_inspection_reports_what_was_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An inspection recognizes the manifest; another file of that name is foreign."""
    index = tmp_path / "index"
    made = build([(1, 1, 5), (1, 2, 9), (2, 1, 7)], index)
    (store,) = inspect_folder(index).stores
    assert store.built == BuiltReport(3, 1, 1, made.bytes, 5, 9)
    assert (store.foreign, store.leftovers, store.damage) == ((), (), ())
    with pytest.raises(SystemExit) as done:
        main(["inspect", str(index)])
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert "Made by build-index, with 3 messages in 1 bucket (manifest.json)" in out
    assert "Not ours" not in out
    for text in ("", "[]", "{", '{"rows": 1}', '{"rows": "3", "buckets": [], "segments": 1, "bytes": 1}'):
        (index / "manifest.json").write_text(text)
        (store,) = inspect_folder(index).stores
        assert (store.built, store.foreign) == (None, ("manifest.json",))


async def test_goes_on_as_any_other(tmp_path: Path) -> None:
    """A built index takes new messages, drops acknowledged ones, and survives restarts."""
    rows = [(ledger, entry, 1_000 + entry) for ledger in (1, 2, 3) for entry in range(10)]
    build(rows, tmp_path / "index")
    clock = ManualClock(0)
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path / "index", SMALL, clock=clock) as tracker:
        assert tracker.number_of_delayed_messages == 30
        for entry in range(10):
            assert tracker.add_message(4, entry, 1_005)
        assert tracker.add_message(5, 0, 1_005)
        await tracker.wait_until_idle()
        await tracker.cursor.mark_delete(Position(1, 9))
        assert tracker.trim() == 10
        clock.set(1_002)
        assert await take_all(tracker) == [(2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2)]
        await tracker.wait_until_idle()
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path / "index", SMALL, clock=clock) as tracker:
        assert tracker.number_of_delayed_messages == 14 + 10
        await tracker.clear()
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path / "index", SMALL, clock=clock) as tracker:
        assert tracker.number_of_delayed_messages == 0
    assert not list((tmp_path / "index").glob("snapshot-*.log"))


async def test_buckets_of_one_ledger_have_names_of_their_own(tmp_path: Path) -> None:
    """A ledger that fills several buckets, over several units, is found whole."""
    rows = [(7, entry << 12, 1_000 + entry) for entry in range(100)]
    built = build(rows, tmp_path / "index", unit_rows=20)
    assert built.buckets == 11  # 10, 10, 10, 10 and 8 in three blocks; again; 4
    found = await deliveries(tmp_path / "index", SMALL, [2_000])
    assert [entry for _, entry in found[0][1]] == [entry << 12 for entry in range(100)]


async def test_index_without_messages(tmp_path: Path) -> None:
    """No rows make an empty index."""
    built = build([], tmp_path / "index")
    assert (built.rows, built.buckets, built.first_at) == (0, 0, None)
    assert await deliveries(tmp_path / "index", SMALL, [10]) == [(10, [])]


def test_folder_that_exists_is_refused(tmp_path: Path) -> None:
    """An existing folder stays, unless it is an index and is to be replaced."""
    index = tmp_path / "index"
    build([(1, 1, 1)], index)
    before = contents(index)
    with pytest.raises(InvalidArgumentError, match="overwrite=True"):
        build([(2, 2, 2)], index)
    assert contents(index) == before
    build([(2, 2, 2)], index, overwrite=True)
    assert contents(index) != before
    (index / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="something else"):
        build([(1, 1, 1)], index, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    "names", [["delayed.cursor-0000000001.log"], ["nacks-1.log", "snapshot-1.log"], ["a.txt", "manifest.json"]]
)
def test_folder_of_something_else_is_not_replaced(tmp_path: Path, names: list[str]) -> None:
    """A folder with another store of logs is not replaced by an index; an empty folder is."""
    index = tmp_path / "index"
    index.mkdir()
    for name in names:
        (index / name).touch()
    with pytest.raises(InvalidArgumentError, match="something else"):
        build([(1, 1, 1)], index, overwrite=True)
    assert sorted(path.name for path in index.iterdir()) == names
    for name in names:
        (index / name).unlink()
    build([(1, 1, 1)], index, overwrite=True)


async def test_open_index_is_not_replaced(tmp_path: Path) -> None:
    """An index that a tracker has open is not replaced."""
    build([(1, 1, 1)], tmp_path / "index")
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path / "index", SMALL):
        with pytest.raises(LogLockedError):
            build([(2, 2, 2)], tmp_path / "index", overwrite=True)
    build([(2, 2, 2)], tmp_path / "index", overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
async def test_storage_that_fails_anywhere_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Each write, sync and rename fails in turn: an error, no index, or the old one, and no leftovers."""
    rows = [(ledger, entry, 100) for ledger in (1, 2) for entry in range(6)]
    index = tmp_path / "index"
    if overwrite:
        build([(9, 9, 9)], index)
    before = contents(index) if overwrite else {}
    failed = 0
    while True:
        files = FailingFiles(failed)
        monkeypatch.setattr(_build_folder, "_files", files)
        with suppress(LogStorageError):
            build(rows, index, overwrite=overwrite)
        monkeypatch.undo()
        if files.left > 0:
            break
        failed += 1
        if (found := contents(index)) != before:  # the last sync comes after the rename
            assert len(found) == 4
            break
        assert [path.name for path in tmp_path.iterdir()] == (["index"] if overwrite else [])
    assert failed > 8


class FailingFiles(OsFiles):
    """Files of which one operation finds the disk full."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise OSError(28, "No space left on device")

    def create(self, path: Path) -> int:
        self._count()
        return super().create(path)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self._count()
        return super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self._count()
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._count()
        super().sync_folder(path)


def test_leftovers_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    """The next run removes a killed run's leftovers, and restores an old index that it had moved away."""
    index = tmp_path / "index"
    build([(1, 1, 1)], index)
    before = contents(index)
    left = tmp_path / ".index.0123456789abcdef.building"
    (left / "attempts" / "x").mkdir(parents=True)
    index.rename(left / "old")
    with pytest.raises(InvalidArgumentError, match="more than once"):
        build([(1, 1, 1), (1, 1, 1)], index)
    assert contents(index) == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize("name", ["index", "ind[e]x", "ind*"])
def test_leftovers_for_other_folders_stay(tmp_path: Path, name: str) -> None:
    """A name that begins with this one, or matches it as a pattern, belongs to another index."""
    left = tmp_path / ".index.v2.0123456789abcdef.building"
    (left / "old").mkdir(parents=True)
    build([(1, 1, 1)], tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {name, left.name}


def test_run_that_lives_is_left_alone(tmp_path: Path) -> None:
    """A concurrent build of the same folder loses nothing; the second to end is refused."""
    with _build_folder.building(tmp_path / "index") as staging:
        build([(1, 1, 1)], tmp_path / "index")
        assert (staging / "index").is_dir()
        with pytest.raises(InvalidArgumentError, match="overwrite=True"):
            _build_folder.commit(staging, tmp_path / "index", overwrite=False)


def test_two_attempts_at_a_log(tmp_path: Path) -> None:
    """A second copy of the same log is dropped; one that differs is an error, because rows must not change."""
    with _build_folder.building(tmp_path / "index") as staging:
        _build_folder.write_log(staging, "a.log", b"same")
        _build_folder.write_log(staging, "a.log", b"same")
        with pytest.raises(ValueError, match="different rows"):
            _build_folder.write_log(staging, "a.log", b"other")
        assert list((staging / "attempts").iterdir()) == []


def test_large_numbers_of_rows_are_cut_into_segments_of_time(tmp_path: Path) -> None:
    """With the default settings a topic's ledgers become buckets, and these segments of at most 5 000 indexes."""
    entries = np.arange(120_000)
    built = build_local(entries // 40_000, entries % 40_000, 1_000 + entries % 977, tmp_path / "index")
    assert (built.rows, built.buckets, built.segments) == (120_000, 2, 16 + 8)
