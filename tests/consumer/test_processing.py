"""Blocks that settle their message: ``async with message.process()``, and exceptions as verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from pulsar_nack import AlreadySettledError, BrokerError, Consumer, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.consumer import DeadLetter, Defer, Ignore, OnError, Retry
from pulsar_nack.errors import NoDeadLetterError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import EXACT, now, publish
from tests.for_each import for_each

from .ports import Ports

RULES: OnError = {OSError: Retry(4), PermissionError: Ignore("not ours")}


class Unprintable(Exception):  # noqa: N818
    """Cannot be printed."""

    def __str__(self) -> str:
        raise AttributeError("no text")


@pytest.mark.each_kind
@virtual_time
async def test_how_a_block_ends(ports: Ports) -> None:
    """U13: success acknowledges; verbs do what they say; other exceptions nack by the backoff, and are raised."""
    port, dead = ports.port(), FakePublisher()
    policy = DeadLetterPolicy(5, "dead", publisher=dead)
    cases: dict[str, tuple[BaseException | None, bool, str]] = {
        "success": (None, False, "acked"),
        "retry": (Retry(delay=2), False, "after 2"),
        "retry by the backoff": (Retry(reason="soon"), False, "after 7"),
        "defer": (Defer(timedelta(seconds=3)), False, "after 3"),
        "dead": (DeadLetter("bad"), False, "dead: bad"),
        "ignore": (Ignore("known"), False, "acked"),
        "mapped": (ConnectionError("gone"), False, "after 4"),
        "most derived": (PermissionError("not mine"), False, "acked"),
        "error": (KeyError("k"), True, "after 7"),
        "without a text": (Unprintable(), True, "after 7"),
        "cancelled": (asyncio.CancelledError(), True, "untouched"),
        "exit": (SystemExit(1), True, "untouched"),
    }
    async with Consumer(port, config=EXACT, backoff=[7], dead_letter=policy) as consumer:
        for name, (error, goes_on, result) in cases.items():
            port.topic.publish(name.encode())
            message = await consumer.receive(timeout=1)
            acked, began, letters = consumer.statistics().acked, now(), len(dead.letters)
            caught: BaseException | None = None
            try:
                async with message.process(on_error=RULES) as same:
                    assert same is message
                    assert not message.is_settled
                    if error is not None:
                        raise error  # noqa: TRY301 - this is the point
            except BaseException as raised:  # noqa: BLE001
                caught = raised
            assert (caught is error) is (goes_on or error is None), name
            assert message.is_settled is (result != "untouched"), name
            if result == "untouched":
                await message.ack()
            elif result == "acked":
                assert consumer.statistics().acked == acked + 1, name
            elif result.startswith("dead"):
                assert [letter.properties["PULSAR_NACK_REASON"] for letter in dead.letters[letters:]] == ["bad"]
            else:
                again = await consumer.receive(timeout=10)
                assert now() - began == pytest.approx(float(result.split()[1]), abs=0.1), name
                assert again.attempt == (1 if name == "defer" else 2), name
                await again.ack()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=60)
    assert port.subscription.backlog == 0


@virtual_time
async def test_a_cancelled_block_leaves_the_message() -> None:
    """U13: a task that is cancelled inside the block neither acknowledges nor nacks."""
    port = FakePort()
    port.topic.publish(b"a")
    async with Consumer(port) as consumer:
        message = await consumer.receive()

        async def work() -> None:
            async with message.process(on_error={Exception: Ignore}):
                await asyncio.sleep(10)

        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not message.is_settled
        statistics = consumer.statistics()
        assert (statistics.in_work, statistics.acked, statistics.nacked) == (1, 0, 0)
        await message.ack()


@virtual_time
async def test_a_message_that_was_settled_inside() -> None:
    """The end of the block does nothing more; verbs and mapped exceptions still end there."""
    port = FakePort()
    publish(port.topic, b"a", b"b", b"c")
    async with Consumer(port, config=EXACT) as consumer:
        a, b, c = [await consumer.receive() for _ in range(3)]
        async with a.process():
            await a.nack(5)
        async with b.process():
            await b.ack()
            raise Retry(1)
        with pytest.raises(ValueError, match="late"):  # noqa: PT012
            async with c.process():
                await c.ack()
                raise ValueError("late")
        assert (consumer.statistics().acked, consumer.statistics().nacked) == (2, 1)
        assert (await consumer.receive(timeout=6)).data == b"a"


@virtual_time
async def test_verbs_that_cannot_be_carried_out() -> None:
    """Without a dead-letter topic the message is nacked by the backoff, and the block raises what is missing."""
    port = FakePort()
    port.topic.publish(b"a")
    async with Consumer(port, config=EXACT, backoff=[2]) as consumer:
        message = await consumer.receive()
        with pytest.raises(NoDeadLetterError):
            async with message.process():
                raise DeadLetter("bad")
        with pytest.raises(AlreadySettledError):
            await message.defer(1)
        message = await consumer.receive(timeout=3)
        with pytest.raises(ZeroDivisionError):
            async with message.process(on_error={ValueError: lambda *_: 1 / 0}):  # type: ignore[dict-item]
                raise ValueError("v")
        message = await consumer.receive(timeout=3)
        with pytest.raises(InvalidArgumentError, match="ValueError"):
            async with message.process(on_error={ValueError: lambda *_: "retry"}):  # type: ignore[dict-item]
                raise ValueError("v")
        assert (await consumer.receive(timeout=3)).attempt == 4


@for_each(
    ("make", "field"),
    [
        (lambda: Retry(-1), "delay"),
        (lambda: Retry("1"), "delay"),  # type: ignore[arg-type]
        (lambda: Retry(1, reason=3), "reason"),  # type: ignore[arg-type]
        (lambda: Defer(None), "delay"),  # type: ignore[arg-type]
        (lambda: DeadLetter(1), "reason"),  # type: ignore[arg-type]
        (lambda: Ignore(None), "reason"),  # type: ignore[arg-type]
    ],
)
def test_verbs_check_their_arguments(make: Callable[[], object], field: str) -> None:
    """Each names the field and the value."""
    with pytest.raises(InvalidArgumentError) as caught:
        make()
    assert caught.value.field == field


@virtual_time
async def test_a_block_ends_while_another_call_acknowledges() -> None:
    """It waits for the outcome; as that is an error, it raises, and the message can still be nacked."""
    port = FakePort()
    message_id = port.topic.publish(b"x")
    async with Consumer(port, config=EXACT) as consumer:
        message = await consumer.receive()
        port._add_fault("acknowledge", Fault(delay=1, error=BrokerError("lost")), 1)
        acknowledging = asyncio.create_task(consumer.acknowledge(message_id))
        with pytest.raises(BrokerError, match="lost"):
            async with message.process():
                await asyncio.sleep(0.5)
        with pytest.raises(BrokerError, match="lost"):
            await acknowledging
        await message.nack(1)
        assert (await consumer.receive(timeout=5)).attempt == 2
