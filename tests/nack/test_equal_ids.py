"""Equal ids of which one has more fields: all known fields, above all the chunks, are in the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from pulsar_nack import MessageId, NackConfig, NackSchedule, NegativeAcksTracker, Position, RedeliveryError
from pulsar_nack.testing import virtual_time
from tests.for_each import for_each
from tests.nack._harness import Recorder

TOPIC = "persistent://public/default/films"
PARTS = (Position(7, 1), Position(7, 2), Position(7, 3))
PLAIN = MessageId(7, 3)
NAMED = MessageId(7, 3, topic=TOPIC)
SIZED = MessageId(7, 3, batch_size=1)
CHUNKED = MessageId(7, 3, first_chunk=MessageId(7, 1), chunks=PARTS)
SPANNED = MessageId(7, 3, first_chunk=MessageId(7, 1))
NAMED_CHUNKED = MessageId(7, 3, first_chunk=MessageId(7, 1), chunks=PARTS, topic=TOPIC)
SHORT = NackConfig(negative_ack_redelivery_delay=0.3)


def said(message_id: MessageId) -> tuple[tuple[Position, ...], str | None]:
    """Return an id's fields beside its numbers."""
    return message_id.parts, message_id.topic


PAIRS = [
    (first, second)
    for first in (PLAIN, NAMED, SIZED, CHUNKED, SPANNED, NAMED_CHUNKED)
    for second in (PLAIN, NAMED, SIZED, CHUNKED, SPANNED, NAMED_CHUNKED)
    if first.is_chunked or second.is_chunked
]


def expected(*ids: MessageId) -> tuple[tuple[Position, ...], str | None]:
    """Return the expected fields of the request when one of these ids names the chunks."""
    return PARTS, next((message_id.topic for message_id in ids if message_id.topic), None)


@for_each(("first", "second"), PAIRS)
def test_a_schedule_keeps_all_that_was_said(first: MessageId, second: MessageId) -> None:
    """O28: a plain id and the chunked one of the same last entry, in either order: chunks and topic are kept."""
    for pop_all in (False, True):
        schedule = NackSchedule()
        schedule.add(MessageId(7, 2), 0, 1000)
        schedule.add(first, 0, 1000)
        schedule.add(second, 0, 2000)
        due = schedule.buckets.pop_all() if pop_all else schedule.pop_due(10_000)
        (found,) = [message_id for message_id in due if message_id == PLAIN]
        assert said(found) == expected(first, second)


def test_explicit_parts_win_over_a_span() -> None:
    """Chunks that are named one by one have priority over a first and a last, whichever came first."""
    apart = MessageId(7, 9, chunks=[(7, 1), (7, 5), (7, 9)], batch_size=1)
    span = MessageId(7, 9, first_chunk=MessageId(7, 1))
    for first, second in ((apart, span), (span, apart)):
        schedule = NackSchedule()
        schedule.add(first, 0, 1000)
        schedule.add(second, 0, 1000)
        (found,) = schedule.pop_due(10_000)
        assert found.parts == (Position(7, 1), Position(7, 5), Position(7, 9))
        assert found.batch_size == 1


async def nack_await(tracker: NegativeAcksTracker, message_id: MessageId) -> None:
    """Nack with the awaiting call."""
    await tracker.nack(message_id)


async def nack_nowait(tracker: NegativeAcksTracker, message_id: MessageId) -> None:
    """Nack with the plain call."""
    tracker.nack_nowait(message_id)


async def nack_many(tracker: NegativeAcksTracker, message_id: MessageId) -> None:
    """Nack several."""
    tracker.nack_many([MessageId(7, 4), message_id])


WAYS: list[Callable[[NegativeAcksTracker, MessageId], object]] = [nack_await, nack_nowait, nack_many]


@pytest.mark.parametrize("collapse", [False, True])
@pytest.mark.parametrize("way", WAYS)
@virtual_time
async def test_a_command_names_all_parts(way: Callable[..., asyncio.Future[None]], *, collapse: bool) -> None:
    """O28: with each call, on subscriptions that rewind too, and through retries."""
    for first, second in PAIRS:
        recorder = Recorder(outcomes=[OSError("no"), OSError("no")])
        async with NegativeAcksTracker(recorder, SHORT, collapse=collapse) as tracker:
            await way(tracker, first)
            await way(tracker, second)
            await asyncio.sleep(3)
        found = [message_id for message_id in recorder.ids if message_id == PLAIN]
        assert len(found) == 3
        assert {said(message_id) for message_id in found} == {expected(first, second)}


@for_each("delay", [0.001, 60])
def test_an_id_that_waits_for_its_next_try(delay: float) -> None:
    """O28: nacked again, sooner or later than its next attempt, with an id that has more or fewer fields."""

    @virtual_time
    async def main() -> None:
        for first, second in PAIRS:
            recorder = Recorder(outcomes=[OSError("no")])
            async with NegativeAcksTracker(recorder, SHORT) as tracker:
                tracker.nack_nowait(first)
                await asyncio.sleep(0.31)
                assert tracker.statistics().retrying == 1
                tracker.nack_nowait(second, delay)
                await asyncio.sleep(3)
            assert [said(message_id) for message_id in recorder.ids[1:]] == [expected(first, second)]

    main()


@virtual_time
async def test_an_id_that_the_callback_failed_for() -> None:
    """O28: the callback names failed ids by a plain id: the retry names all chunks and the topic."""
    recorder = Recorder(outcomes=[RedeliveryError("no", failed=[PLAIN])])
    async with NegativeAcksTracker(recorder, SHORT) as tracker:
        tracker.nack_nowait(NAMED_CHUNKED)
        await asyncio.sleep(3)
    assert [said(message_id) for message_id in recorder.ids] == 2 * [expected(NAMED_CHUNKED)]


@pytest.mark.parametrize("outcome", ["fails", "closed"])
@virtual_time
async def test_an_id_that_is_in_flight(outcome: str) -> None:
    """O28: nacked while its request is open, which then fails or is cut off: the id's fields are kept."""
    for first, second in PAIRS:
        commands: list[Sequence[MessageId]] = []

        async def redeliver(ids: Sequence[MessageId], commands: list[Sequence[MessageId]] = commands) -> None:
            commands.append(ids)
            if len(commands) == 1:
                await asyncio.sleep(1 if outcome == "fails" else 100)
                raise OSError("no")

        config = NackConfig(negative_ack_redelivery_delay=0.3, close_timeout=0.1)
        tracker = NegativeAcksTracker(redeliver, config)
        async with tracker:
            tracker.nack_nowait(first)
            await asyncio.sleep(0.5)
            tracker.nack_nowait(second, 2)
            if outcome == "fails":
                await asyncio.sleep(3)
                assert said(commands[-1][0]) == expected(first, second)
        if outcome == "closed":
            (left,) = await tracker.aclose()
            assert said(left) == expected(first, second)
        else:
            assert len(commands) == 2


@virtual_time
async def test_an_id_in_two_commands_at_once() -> None:
    """O28: the first request fails while a later one has the plain id, which fails too: the retry names all chunks."""
    recorder = Recorder()
    tries = 0

    async def redeliver(ids: Sequence[MessageId]) -> None:
        nonlocal tries
        tries += 1
        await recorder(ids)
        if tries <= 2:
            await asyncio.sleep(1.0)
            raise OSError("no")

    async with NegativeAcksTracker(redeliver, SHORT) as tracker:
        tracker.nack_nowait(CHUNKED)
        await asyncio.sleep(0.5)
        tracker.nack_nowait(PLAIN)
        await asyncio.sleep(5)
    assert len(recorder.ids) == 3
    assert recorder.ids[2].parts == PARTS


def test_runs_name_the_last_part_alone() -> None:
    """O28: the bulk call leaves out the other chunks, as documented."""
    schedule = NackSchedule()
    schedule.add(CHUNKED, 0, 1000)
    (run,) = schedule.pop_due_runs(10_000)
    assert list(run.entries) == [3]
    assert "chunked" in (NackSchedule.pop_due_runs.__doc__ or "")
    schedule.add(PLAIN, 0, 1000)
    assert schedule.buckets.pop_all()[0].parts == (PLAIN.position,)
