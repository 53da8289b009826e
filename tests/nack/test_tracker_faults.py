"""Callbacks, hooks and arguments that misbehave must not take the tracker with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pulsar_nack import InvalidArgumentError, MessageId, NackConfig, NegativeAcksTracker, WouldBlockError
from pulsar_nack.errors import NotOpenError
from pulsar_nack.nack import NackEvent
from pulsar_nack.testing import virtual_time

from ._harness import Recorder, mid


@virtual_time
async def test_a_range_beyond_the_room_is_refused_without_making_its_ids() -> None:
    """N22: however long a range is, it is refused at once, with nothing added."""
    tracker = NegativeAcksTracker(Recorder(), NackConfig(max_held=1_000))
    for entries in (range(2**40), range(2**63), range(2**63 - 1, -1, -2)):
        with pytest.raises(NotOpenError):
            tracker.nack_entries(1, entries)
    async with tracker:
        for entries in (range(2**40), range(2**63), range(2**63 - 1, -1, -2)):
            with pytest.raises(WouldBlockError) as caught:
                tracker.nack_entries(1, entries)
            assert caught.value.wanted == (entries[-1] - entries[0]) // entries.step + 1
        assert tracker.statistics().pending == 0
        tracker.nack_entries(1, range(600))
        with pytest.raises(WouldBlockError):
            tracker.nack_entries(1, range(2_000))
        tracker.nack_entries(1, range(1_000))
        assert tracker.statistics().held == tracker.statistics().pending == 1_000


@virtual_time
async def test_what_has_no_length_is_refused_by_name() -> None:
    """N24: a class in place of its instance is named as the argument that it is."""
    async with NegativeAcksTracker(Recorder()) as tracker:
        with pytest.raises(InvalidArgumentError, match="entries"):
            tracker.nack_entries(1, list)
        assert tracker.statistics().pending == 0


@virtual_time
async def test_a_hook_that_looks_at_something_cancelled_is_counted() -> None:
    """N16: a CancelledError out of a hook is the hook's fault; it cancels neither the caller nor the tracker."""

    def hook(event: NackEvent) -> None:
        raise asyncio.CancelledError

    redeliver = Recorder()
    async with NegativeAcksTracker(redeliver, hooks=[hook]) as tracker:
        for entry in range(3):
            tracker.nack_nowait(mid(entry), 0)
            await asyncio.sleep(1)
        assert [ids for _, ids in redeliver.commands] == [[mid(0)], [mid(1)], [mid(2)]]
        assert tracker.statistics().hook_errors == 6


@virtual_time
async def test_a_callback_whose_task_is_cancelled_has_failed() -> None:
    """N16: cancelling the task of one callback, from inside or outside, is one failure and not the tracker's end."""
    seen: list[list[MessageId]] = []

    async def redeliver(ids: Sequence[MessageId]) -> None:
        seen.append(list(ids))
        if len(seen) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)

    async with NegativeAcksTracker(redeliver) as tracker:
        tracker.nack_nowait(mid(1), 0)
        tracker.nack_nowait(mid(2), 5)
        await asyncio.sleep(10)
        assert seen == [[mid(1)], [mid(1)], [mid(2)]]
        assert tracker.statistics().failed_commands == 1
        assert tracker.statistics().held == 0
