"""Deletes what trackers stored, without one: the subscription is gone, or has another kind of tracker now."""

from __future__ import annotations

from collections.abc import Iterable

from ..storage import BucketSnapshotStorage, DelayedCursor
from ._keys import NamedSnapshot
from ._snapshots import Snapshots


async def delete_bucket_snapshots(
    storage: BucketSnapshotStorage, cursor: DelayedCursor, *, topic_name: str = "", cursor_name: str = ""
) -> int:
    """Delete all snapshots of a cursor and the properties that name them; return how many.

    No tracker may be open on them. Nothing is lost by it: their messages are in the topic. All are tried; what cannot
    be deleted stays named, so that it can be tried again.

    :raises ExceptionGroup: what storage or cursor raised for some of them
    """
    snapshots = Snapshots(storage, cursor, topic_name, cursor_name)
    deleted, errors = await _delete(snapshots, snapshots.named())
    try:
        orphans = await snapshots.orphans()
    except Exception as error:  # noqa: BLE001 - as below
        errors.append(error)
    else:
        more, failed = await _delete(snapshots, orphans or [])
        deleted, errors = deleted + more, errors + failed
    if errors:
        raise ExceptionGroup("some snapshots could not be deleted", errors)
    return deleted


async def _delete(snapshots: Snapshots, unwanted: Iterable[NamedSnapshot]) -> tuple[int, list[Exception]]:
    deleted, errors = 0, []
    for named in unwanted:
        try:
            await snapshots.delete(named)
        except Exception as error:  # noqa: BLE001 - all of them are raised together
            errors.append(error)
        else:
            deleted += 1
    return deleted, errors
