"""Snapshots are deleted without a tracker."""

from __future__ import annotations

import pytest

from pulsar_nack.delayed import delete_bucket_snapshots
from pulsar_nack.errors import InjectedError

from .stage import Stage

pytestmark = pytest.mark.usefixtures("home")


async def stored() -> Stage:
    """Return a stage with three named snapshots and one without a name."""
    stage = Stage()
    async with stage.run():
        await stage.fill(1, 16)
        await stage.idle()
    stage.storage.snapshots[1] = (b"", b"")
    return stage


async def test_all_are_deleted() -> None:
    """D34: unused snapshots are deleted, named or not; other properties stay."""
    stage = await stored()
    async with stage.home:
        assert await delete_bucket_snapshots(stage.storage, stage.cursor) == 4
        assert stage.stored == []
        assert stage.cursor.held == {"other": "1"}
        assert await delete_bucket_snapshots(stage.storage, stage.cursor) == 0


async def test_what_cannot_be_deleted_is_tried_again() -> None:
    """A failure does not affect the others, is reported, and leaves its snapshot to the next call."""
    stage = await stored()
    stage.storage.faults.fail["delete"] = 1
    stage.cursor.faults.fail["remove"] = 1
    async with stage.home:
        with pytest.raises(ExceptionGroup, match="some snapshots could not be deleted") as caught:
            await delete_bucket_snapshots(stage.storage, stage.cursor)
        assert len(caught.value.exceptions) == 2
        assert all(isinstance(error, InjectedError) for error in caught.value.exceptions)
        assert len(stage.names) == 2
        assert await delete_bucket_snapshots(stage.storage, stage.cursor) == 2
        assert stage.stored == []


async def test_what_has_a_name_is_deleted_without_a_listing() -> None:
    """With a storage that cannot list its snapshots the named ones are deleted; the failure is reported."""
    stage = await stored()
    async with stage.home:
        stage.storage.faults.fail["list"] = 1
        with pytest.raises(ExceptionGroup, match="some snapshots could not be deleted") as caught:
            await delete_bucket_snapshots(stage.storage, stage.cursor)
        assert len(caught.value.exceptions) == 1
        assert stage.names == {}
        assert len(stage.stored) == 1
        assert await delete_bucket_snapshots(stage.storage, stage.cursor) == 1
        assert stage.stored == []
