"""Factories: which tracker is created, when it is in memory instead, and what is closed with the factory."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest
from pydantic import ValidationError

from pulsar_nack import (
    BucketConfig,
    BucketDelayedDeliveryTracker,
    ClosedError,
    DelayedDeliveryTracker,
    InMemoryDelayedDeliveryTracker,
    InvalidArgumentError,
    Position,
)
from pulsar_nack.clock import LoopClock
from pulsar_nack.delayed import (
    DelayedDeliveryTrackerFactory,
    DisabledDelayedDeliveryTracker,
    OpenTracker,
    SharedSubscription,
)
from pulsar_nack.delayed.bucket._recovery import Recovery
from pulsar_nack.errors import InjectedError, NotOpenError, SnapshotError
from pulsar_nack.testing import MemoryDelayedCursor, virtual_time
from tests.for_each import for_each

from .factories import NAMES, TOPIC, SlowStorage, Subscription, assert_is_closed, config_of

JAVA = "org.apache.pulsar.broker.delayed."
CLASS = "delayedDeliveryTrackerFactoryClassName"


async def with_snapshots() -> Subscription:
    """Return a subscription with thirty messages, most of them in snapshots."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 30)
        await subscription.settle()
    assert len(subscription.names) > 2
    return subscription


# -- which one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, InMemoryDelayedDeliveryTracker),
        ({CLASS: JAVA + "InMemoryDelayedDeliveryTrackerFactory"}, InMemoryDelayedDeliveryTracker),
        ({CLASS: "InMemoryDelayedDeliveryTrackerFactory"}, InMemoryDelayedDeliveryTracker),
        ({CLASS: "memory"}, InMemoryDelayedDeliveryTracker),
        ({CLASS: JAVA + "BucketDelayedDeliveryTrackerFactory"}, BucketDelayedDeliveryTracker),
        ({CLASS: "BucketDelayedDeliveryTrackerFactory"}, BucketDelayedDeliveryTracker),
        ({CLASS: "bucket"}, BucketDelayedDeliveryTracker),
        ({CLASS: "bucket", "delayedDeliveryEnabled": False}, DisabledDelayedDeliveryTracker),
        ({CLASS: "none"}, DisabledDelayedDeliveryTracker),
        ({CLASS: "disabled"}, DisabledDelayedDeliveryTracker),
        ({CLASS: None}, DisabledDelayedDeliveryTracker),
    ],
)
async def test_the_configuration_chooses(settings: dict[str, Any], kind: type) -> None:
    """Pulsar's class names, their last parts and short words choose, unless delayed delivery is off."""
    config = BucketConfig(**settings)
    assert BucketConfig.model_validate_json(config.model_dump_json(by_alias=True)) == config
    async with DelayedDeliveryTrackerFactory(config, SlowStorage()) as factory:
        tracker = await factory.new_tracker(MemoryDelayedCursor(), **NAMES)
        assert type(tracker) is kind
        assert isinstance(tracker, DelayedDeliveryTracker)
        assert factory.trackers() == [OpenTracker(TOPIC, "billing", tracker)]


@for_each("name", ["Bucket", "com.example.Factory", "", 7, True, ["bucket"]])
def test_an_unknown_name_is_refused(name: object) -> None:
    """Any other value is refused with the field's name and the value."""
    with pytest.raises(ValidationError, match="delayed_delivery_tracker_factory_class_name: expected one of") as caught:
        BucketConfig(**{CLASS: name})
    assert f"got {name!r}" in str(caught.value)


async def test_a_disabled_tracker_holds_nothing() -> None:
    """It refuses every message, checks its arguments like others, and closes like them."""
    async with DisabledDelayedDeliveryTracker() as tracker:
        assert not tracker.add_message(1, 1, 2**60)
        assert not tracker.has_message_available()
        assert not tracker.should_pause_all_deliveries()
        assert not tracker.contains_message(1, 1)
        assert tracker.get_scheduled_messages(10) == []
        assert (tracker.number_of_delayed_messages, tracker.buffer_memory_usage) == (0, 0)
        tracker.reset_tick_time(5)
        await tracker.clear()
        with pytest.raises(InvalidArgumentError, match="ledger_id"):
            tracker.add_message(-1, 1, 1)
        with pytest.raises(InvalidArgumentError, match="tick_ms"):
            tracker.reset_tick_time(-1)
    await assert_is_closed(tracker)


async def test_what_is_missing_is_named() -> None:
    """Buckets need a storage, each bucket tracker a cursor, a shared index a cursor and a name more."""
    with pytest.raises(InvalidArgumentError, match="storage"):
        DelayedDeliveryTrackerFactory(config_of("bucket"))
    cursor: Any = MemoryDelayedCursor()
    async with DelayedDeliveryTrackerFactory(config_of("bucket"), SlowStorage()) as factory:
        with pytest.raises(InvalidArgumentError, match="cursor"):
            await factory.new_tracker()
        with pytest.raises(InvalidArgumentError, match="on_due"):
            await factory.new_tracker(cursor, on_due=asyncio.sleep)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="topic_name"):
            await factory.new_tracker(cursor, topic_name=7)  # type: ignore[arg-type]
    config = config_of("bucket", delayedDeliverySharedIndexEnabled=True)
    async with DelayedDeliveryTrackerFactory(config, SlowStorage()) as factory:
        with pytest.raises(InvalidArgumentError, match="topic_cursor"):
            await factory.new_tracker(cursor, **NAMES)
        with pytest.raises(InvalidArgumentError, match="cursor_name"):
            await factory.new_tracker(cursor, topic_cursor=cursor)
        assert factory.statistics().trackers == 0


# -- in memory instead -----------------------------------------------------------------------------------------------


async def goes_on_in_memory(subscription: Subscription, kind: type[Exception]) -> None:
    """Run with buckets that fall back: all messages are there, delivered in time, and no snapshot is touched."""
    before = dict(subscription.memory.snapshots)
    async with subscription.run("bucket", recovery_timeout=0.05):
        assert isinstance(subscription.tracker, InMemoryDelayedDeliveryTracker)
        assert subscription.count == 30
        assert subscription.factory.statistics().fallbacks == 1
        await asyncio.sleep(0)
        (told,) = subscription.fallbacks
        assert (told.topic_name, told.cursor_name) == (TOPIC, "billing")
        assert isinstance(told.error, kind)
        assert subscription.factory.statistics().last_error is told.error
        assert await subscription.deliver(100) == list(range(1, 11))
        subscription.memory.faults.heal()
    assert subscription.memory.snapshots == before


async def and_back_in_buckets(subscription: Subscription) -> None:
    """Run once more: the snapshots are recovered, and each message is dispatched once."""
    async with subscription.run("bucket"):
        assert isinstance(subscription.tracker, BucketDelayedDeliveryTracker)
        assert subscription.count == 20
        await subscription.deliver(300)
    assert subscription.dispatched == list(range(1, 31))
    assert subscription.memory.snapshots == {}


@pytest.mark.parametrize("trouble", ["fail", "hold"])
@pytest.mark.parametrize("call", ["start", "metadata"])
async def test_storage_in_trouble(call: str, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    """Storage that does not start, or gives no snapshot, or not in time: the tracker is in memory, and says so."""
    subscription = await with_snapshots()
    if trouble == "fail":
        subscription.memory.faults.fail[call] = -1
    else:
        subscription.memory.faults.hold(call)
    kinds = {("start", "fail"): InjectedError, ("metadata", "fail"): SnapshotError}
    with caplog.at_level(logging.WARNING, "pulsar_nack"):
        await goes_on_in_memory(subscription, kinds.get((call, trouble), TimeoutError))
    (record,) = caplog.records
    assert record.name == "pulsar_nack.delayed"
    assert "'billing', are held in memory" in record.getMessage()
    await and_back_in_buckets(subscription)


async def test_opening_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever opening raises, the tracker is created in memory."""
    subscription = await with_snapshots()

    def properties() -> dict[str, str]:
        raise RuntimeError("no cursor")

    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "start", lambda *_: properties())
        await goes_on_in_memory(subscription, RuntimeError)
    await and_back_in_buckets(subscription)


async def test_some_snapshots_that_fail_are_no_reason() -> None:
    """A tracker that has recovered something stays in buckets; the rest is read later, or again by the dispatcher."""
    subscription = await with_snapshots()
    subscription.memory.faults.fail["metadata"] = 1
    async with subscription.run("bucket"):
        assert isinstance(subscription.tracker, BucketDelayedDeliveryTracker)
        assert subscription.tracker.statistics().is_recovering
        assert subscription.count == 30
        assert await subscription.deliver(300) == list(range(1, 31))
    assert subscription.fallbacks == []


@virtual_time
async def test_recovery_that_fails_at_first() -> None:
    """While every snapshot fails they are tried again within the time limit, and then it is a bucket tracker."""
    storage, cursor = SlowStorage(), MemoryDelayedCursor()
    config = config_of("bucket", recovery_timeout=10)
    async with DelayedDeliveryTrackerFactory(config, storage, clock=LoopClock()) as factory:
        tracker = await factory.new_tracker(cursor, **NAMES)
        for i in range(1, 8):
            tracker.add_message(i, i, 2**50)
        assert isinstance(tracker, BucketDelayedDeliveryTracker)
        await tracker.wait_until_idle()
        assert len(storage.snapshots) == 1
    storage.faults.fail["metadata"] = 3
    began_at = asyncio.get_running_loop().time()
    async with DelayedDeliveryTrackerFactory(config, storage, clock=LoopClock()) as factory:
        tracker = await factory.new_tracker(cursor, **NAMES)
        assert isinstance(tracker, BucketDelayedDeliveryTracker)
        assert tracker.number_of_delayed_messages == 5
        assert factory.statistics().fallbacks == 0
    assert 0.1 < asyncio.get_running_loop().time() - began_at < 2


@virtual_time
async def test_waits_for_a_slow_storage_once() -> None:
    """A storage that hangs is waited for only once; when it works after all, the next tracker is in buckets."""
    storage = SlowStorage()
    gate = storage.faults.hold("start")
    loop = asyncio.get_running_loop()
    async with DelayedDeliveryTrackerFactory(config_of("bucket", recovery_timeout=3), storage) as factory:
        assert loop.time() == pytest.approx(3)
        for number in range(5):
            tracker = await factory.new_tracker(MemoryDelayedCursor(), cursor_name=str(number))
            assert isinstance(tracker, InMemoryDelayedDeliveryTracker)
        assert loop.time() == pytest.approx(3)
        gate.set()
        await asyncio.sleep(1)
        tracker = await factory.new_tracker(MemoryDelayedCursor(), cursor_name="last")
        assert isinstance(tracker, BucketDelayedDeliveryTracker)
        assert factory.statistics().fallbacks == 5
    assert (storage.faults.calls["start"], storage.faults.calls["close"]) == (1, 1)


async def test_a_start_that_failed_is_tried_again() -> None:
    """A storage that could not be started is started by the next tracker, and by cleaning."""
    subscription = await with_snapshots()
    faults = subscription.memory.faults
    faults.fail["start"] = 2
    async with subscription.factory_of("bucket") as factory:
        assert isinstance(
            await factory.new_tracker(subscription.cursor, cursor_name="1"), InMemoryDelayedDeliveryTracker
        )
        assert isinstance(await factory.new_tracker(subscription.cursor, **NAMES), BucketDelayedDeliveryTracker)
    faults.fail["start"] = 2
    async with subscription.run("memory"):
        for _ in range(5):
            await subscription.factory.wait_until_clean()
            subscription.clock.advance(1)
        assert subscription.names
        for _ in range(2):
            subscription.clock.advance(1_000)
            await subscription.factory.wait_until_clean()
        assert subscription.memory.snapshots == {}


async def test_a_call_that_hangs_does_not_hold_dispatch_up() -> None:
    """A storage call that ignores cancellation delays no tracker; closing the factory waits for it."""
    subscription = await with_snapshots()
    release = asyncio.Event()

    class Hanging(SlowStorage):
        async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            raise InjectedError("metadata")

    storage = Hanging()
    storage.snapshots = subscription.memory.snapshots
    subscription.make_storage = lambda: storage
    async with subscription.run("bucket", recovery_timeout=0.05):
        assert isinstance(subscription.tracker, InMemoryDelayedDeliveryTracker)
        assert await subscription.deliver(300) == list(range(1, 31))
        release.set()


async def test_a_cancelled_opening_leaves_nothing() -> None:
    """A call that is cancelled while it opens has created no tracker; the next one can."""
    subscription = await with_snapshots()
    gate = subscription.memory.faults.hold("metadata")
    async with subscription.factory_of("bucket") as factory:
        opening = asyncio.create_task(factory.new_tracker(subscription.cursor, **NAMES))
        while not subscription.memory.faults.calls["metadata"]:
            await asyncio.sleep(0)
        with pytest.raises(InvalidArgumentError, match="without an open tracker"):
            await factory.new_tracker(subscription.cursor, **NAMES)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert factory.trackers() == []
        gate.set()
        tracker = await factory.new_tracker(subscription.cursor, **NAMES)
        assert isinstance(tracker, BucketDelayedDeliveryTracker)


# -- several subscriptions -------------------------------------------------------------------------------------------


async def test_a_subscription_has_one_tracker_at_a_time() -> None:
    """A second tracker is refused while the first is open; another subscription, or topic, has its own."""
    async with DelayedDeliveryTrackerFactory() as factory:
        tracker = await factory.new_tracker(**NAMES)
        with pytest.raises(InvalidArgumentError, match="cursor_name"):
            await factory.new_tracker(**NAMES)
        await factory.new_tracker(topic_name=TOPIC, cursor_name="other")
        await tracker.aclose()
        await factory.new_tracker(**NAMES)


async def test_closed_trackers_are_forgotten() -> None:
    """Closed or dropped trackers are not listed, and a thousand of them leave no entries."""
    async with DelayedDeliveryTrackerFactory() as factory:
        kept = await factory.new_tracker(cursor_name="kept")
        for number in range(1_000):
            tracker = await factory.new_tracker(cursor_name=str(number))
            if number % 2:
                await tracker.aclose()
        del tracker
        gc.collect()
        assert factory.trackers() == [OpenTracker("", "kept", kept)]
        assert factory.statistics().trackers == 1
        assert len(factory._registry._trackers) < 64


async def test_a_shared_index() -> None:
    """With ``delayedDeliverySharedIndexEnabled`` the subscriptions of a topic share an index, each with its acks."""
    storage, topic_cursor = SlowStorage(), MemoryDelayedCursor()
    cursors = {"a": MemoryDelayedCursor(), "b": MemoryDelayedCursor()}
    subscription = Subscription()
    config = config_of("bucket", delayedDeliverySharedIndexEnabled=True)
    for run in range(2):
        async with DelayedDeliveryTrackerFactory(config, storage, clock=subscription.clock) as factory:
            a, b = [
                await factory.new_tracker(cursor, topic_name=TOPIC, cursor_name=name, topic_cursor=topic_cursor)
                for name, cursor in cursors.items()
            ]
            assert isinstance(a, SharedSubscription)
            assert isinstance(b, SharedSubscription)
            if not run:
                assert all(a.add_message(i, i, 10 * i) for i in range(1, 13))
                await b.shared_index.tracker.wait_until_idle()
            assert b.number_of_delayed_messages == a.number_of_delayed_messages == (10 if run else 12)
    assert len(topic_cursor.held) == len(storage.snapshots) == 2
    assert cursors["a"].held == {}
    cursors["b"].mark_delete_position = Position(5, 0)
    async with DelayedDeliveryTrackerFactory(config, storage, clock=subscription.clock) as factory:
        a, b = [
            await factory.new_tracker(cursor, topic_name=TOPIC, cursor_name=name, topic_cursor=topic_cursor)
            for name, cursor in cursors.items()
        ]
        subscription.clock.set(100)
        taken: list[int] = []
        while a.has_message_available():
            taken += [position.entry for position in a.get_scheduled_messages(100)]
            await asyncio.sleep(0)
        assert taken == list(range(1, 11))
        assert [position.entry for position in b.get_scheduled_messages(100)] == [5, 6, 7, 8, 9, 10]


async def test_a_shared_index_ends_with_its_last_subscription() -> None:
    """The index is closed with its last subscription, and opened again for the next one."""
    storage, topic_cursor, cursor = SlowStorage(), MemoryDelayedCursor(), MemoryDelayedCursor()
    config = config_of("bucket", delayedDeliverySharedIndexEnabled=True)
    async with DelayedDeliveryTrackerFactory(config, storage) as factory:

        async def join(name: str) -> SharedSubscription:
            made = await factory.new_tracker(cursor, topic_name=TOPIC, cursor_name=name, topic_cursor=topic_cursor)
            assert isinstance(made, SharedSubscription)
            return made

        one, two = await asyncio.gather(join("one"), join("two"))
        index = one.shared_index.tracker
        assert two.shared_index.tracker is index
        await one.aclose()
        assert not index.has_message_available()
        await two.aclose()
        with pytest.raises(ClosedError):
            index.has_message_available()
        three = await join("three")
        assert three.shared_index.tracker is not index
        assert factory.statistics().fallbacks == 0


@pytest.mark.parametrize("is_first_shared", [True, False])
async def test_sharing_changes_between_runs(is_first_shared: bool) -> None:
    """D34: the snapshots of a shared index are cleaned when it is no longer shared, and the other way round."""
    storage, topic_cursor, cursor = SlowStorage(), MemoryDelayedCursor(), MemoryDelayedCursor()
    for is_shared in (is_first_shared, not is_first_shared):
        config = config_of("bucket", delayedDeliverySharedIndexEnabled=is_shared)
        async with DelayedDeliveryTrackerFactory(config, storage) as factory:
            tracker = await factory.new_tracker(cursor, **NAMES, topic_cursor=topic_cursor)
            await factory.wait_until_clean()
            assert (tracker.number_of_delayed_messages, storage.snapshots) == (0, {})
            assert all(tracker.add_message(i, i, 2**50) for i in range(1, 17))
            used, unused = (topic_cursor, cursor) if is_shared else (cursor, topic_cursor)
            while len(used.held) < 3:
                await asyncio.sleep(0)
        assert len(used.held) == 3
        assert unused.held == {}


# -- the end ---------------------------------------------------------------------------------------------------------


async def test_what_it_owns_ends_with_it() -> None:
    """Closing ends trackers, cleaning and the storage, once; then nothing more is created."""
    subscription = await with_snapshots()
    subscription.memory.faults.hold("delete")
    factory = subscription.factory_of("memory")
    with pytest.raises(NotOpenError):
        await factory.new_tracker()
    await factory.start()
    await factory.start()
    tracker = await factory.new_tracker(subscription.cursor, **NAMES)
    closes = subscription.memory.faults.calls["close"]
    await factory.aclose()
    await factory.aclose()
    assert subscription.memory.faults.calls["close"] == closes + 1
    with pytest.raises(ClosedError):
        tracker.add_message(1, 1, 1)
    for call in (factory.start, factory.new_tracker):
        with pytest.raises(ClosedError):
            await call()
    assert factory.statistics().trackers == 0


async def test_closed_while_a_tracker_is_made() -> None:
    """A tracker that is being created when the factory closes is not returned."""
    subscription = await with_snapshots()
    gate = subscription.memory.faults.hold("metadata")
    factory = subscription.factory_of("bucket")
    await factory.start()
    opening = asyncio.create_task(factory.new_tracker(subscription.cursor, **NAMES))
    while not subscription.memory.faults.calls["metadata"]:
        await asyncio.sleep(0)
    await factory.aclose()
    gate.set()
    with pytest.raises(ClosedError):
        await opening
    assert factory.trackers() == []


async def test_closing_goes_on_when_it_is_cancelled() -> None:
    """A cancelled close continues, and the next call waits for its end."""
    storage = SlowStorage()
    factory = DelayedDeliveryTrackerFactory(config_of("bucket"), storage)
    await factory.start()
    tracker = await factory.new_tracker(MemoryDelayedCursor())
    closing = asyncio.create_task(factory.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await factory.aclose()
    assert storage.faults.calls["close"] == 1
    with pytest.raises(ClosedError):
        tracker.has_message_available()


async def test_closing_while_the_storage_starts() -> None:
    """A start that hangs is given up, and its caller gets an error."""
    storage = SlowStorage()
    storage.faults.hold("start")
    factory = DelayedDeliveryTrackerFactory(config_of("bucket"), storage)
    starting = asyncio.create_task(factory.start())
    while not storage.faults.calls["start"]:
        await asyncio.sleep(0)
    await factory.aclose()
    await starting
    assert isinstance(factory.statistics().last_error, ClosedError)


async def test_errors_of_the_callback_disturb_nobody() -> None:
    """An error of ``on_fallback`` goes to the loop's exception handler; the tracker is created."""
    storage = SlowStorage()
    storage.faults.fail["start"] = -1
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    def broken(_: object) -> None:
        raise RuntimeError("callback")

    async with DelayedDeliveryTrackerFactory(config_of("bucket"), storage, on_fallback=broken) as factory:
        assert isinstance(await factory.new_tracker(MemoryDelayedCursor()), InMemoryDelayedDeliveryTracker)
        await asyncio.sleep(0)
    (context,) = seen
    assert str(context["exception"]) == "callback"
