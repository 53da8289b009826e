"""Openings of durable things that are refused: the error names the field, and no file is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    BucketDelayedDeliveryTracker,
    Consumer,
    Cursor,
    CursorConfig,
    DelayedDeliveryConfig,
    InMemoryDelayedDeliveryTracker,
    InvalidArgumentError,
    LocalTopic,
    NackConfig,
    Position,
)
from pulsar_nack.config import TopicConfig
from pulsar_nack.delayed import DelayedDeliveryTrackerFactory, LogBucketTracker, LogDelayedCursor
from pulsar_nack.errors import LogLockedError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FakePort, MemoryDelayedCursor, MemorySnapshotStorage
from tests.for_each import for_each

WRONG: Any = NackConfig()
NO_CLOCK: Any = 5
NO_LEDGERS: Any = 5

Opening = Callable[[Path], Awaitable[object]]

REFUSED: dict[str, Opening] = {
    "config of a tracker": lambda path: BucketDelayedDeliveryTracker.open_local(path, WRONG),
    "config of memory": lambda path: BucketDelayedDeliveryTracker.open_local(path, DelayedDeliveryConfig()),  # type: ignore[arg-type]
    "config of a cursor": lambda path: Cursor.open_local(path, {1: 1}, WRONG),
    "config of a topic": lambda path: LocalTopic.open(path, CursorConfig()),  # type: ignore[arg-type]
    "delayed of a topic": lambda path: LocalTopic.open(path, delayed=WRONG),
    "config of a consumer": lambda path: Consumer(FakePort(), durable=path, config=TopicConfig()).open(),  # type: ignore[arg-type]
    "ledgers of a cursor": lambda path: Cursor.open_local(path, NO_LEDGERS),
    "name of a cursor": lambda path: Cursor.open_local(path, {1: 1}, name="../x"),
    "start of a cursor": lambda path: Cursor.open_local(path, {1: 1}, start=(5, 5)),
    "clock of a tracker": lambda path: BucketDelayedDeliveryTracker.open_local(path, clock=NO_CLOCK),
    "clock of a topic": lambda path: LocalTopic.open(path, clock=NO_CLOCK),
    "on_due of a tracker": lambda path: BucketDelayedDeliveryTracker.open_local(path, on_due=NO_CLOCK),
}


@for_each("case", REFUSED)
async def test_nothing_is_made(case: str, tmp_path: Path) -> None:
    """A wrong class of settings, or another wrong argument, is named, and leaves no file or folder."""
    with pytest.raises(InvalidArgumentError) as caught:
        await REFUSED[case](tmp_path / "home")
    assert caught.value.field == case.partition(" ")[0]
    assert not (tmp_path / "home").exists()


async def test_settings_of_trackers_without_a_folder() -> None:
    """Trackers in memory, on any storage, and their factory, look at the class of their settings too."""
    with pytest.raises(InvalidArgumentError, match="config: expected a DelayedDeliveryConfig"):
        InMemoryDelayedDeliveryTracker(WRONG)
    with pytest.raises(InvalidArgumentError, match="config: expected a BucketConfig"):
        DelayedDeliveryTrackerFactory(config=WRONG)
    with pytest.raises(InvalidArgumentError, match="config: expected a BucketConfig"):
        await BucketDelayedDeliveryTracker.open(MemorySnapshotStorage(), MemoryDelayedCursor(), WRONG)


async def test_a_tracker_where_a_cursor_lies(tmp_path: Path) -> None:
    """A tracker in a Cursor's folder uses this cursor, one at a time; acknowledgements and properties stay."""
    async with await LocalLogStore.open(tmp_path) as store:
        async with await Cursor.open(store, {1: 20}) as cursor:
            await cursor.acknowledge([(1, 3)])
            for opening in (LogBucketTracker.open_store(store), LogDelayedCursor.open(store)):
                with pytest.raises(LogLockedError, match="cursor-0000000001: this cursor is open already"):
                    await opening
        async with await LogDelayedCursor.open(store) as tracked:
            await tracked.put_property("a", "b")
            await tracked.mark_delete(Position(1, 1))
        async with await Cursor.open(store, {1: 20}) as cursor:
            assert await cursor.individually_deleted() == [((1, 2), (1, 3))]
            assert (cursor.mark_delete_position, cursor.properties()) == (Position(1, 1), {"a": "b"})
