"""A port that delivers and acknowledges without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_nack import AlreadySettledError, BrokerError, ClosedError, Consumer, MessageId, NackConfig
from pulsar_nack.consumer import AcksDone, Delivery
from pulsar_nack.testing import FakePort, virtual_time
from tests.consumer.consuming import digits, new_message, publish
from tests.consumer.nowait_port import NowaitPort

Done = Callable[[Exception | None], None]


class SilentPort(NowaitPort):
    """Keeps acknowledgements until the test answers them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[tuple[MessageId, Done]] = []
        self.refusal: Exception | None = None

    def acknowledge_soon(self, message_id: MessageId, token: Any, done: AcksDone[Any]) -> None:
        """Refuse at once, or keep it."""
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((message_id, lambda error: done([token], error)))


class SlowPort(FakePort):
    """Acknowledges in a call that ends when the test says so."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.confirmed = asyncio.Event()

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Forget it, and wait."""
        await self.confirmed.wait()


class SlowNowaitPort(SlowPort, NowaitPort):
    """The same without waiting."""


class FailingPort(FakePort):
    """Takes a second to fail to acknowledge."""

    is_failing = False

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Fail, or do it."""
        if self.is_failing:
            await asyncio.sleep(1)
            raise BrokerError("no")
        await super().acknowledge(ids)


class FailingNowaitPort(FailingPort, NowaitPort):
    """The same without waiting."""


async def turns() -> None:
    """Run everything that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


@virtual_time
async def test_no_task_is_made_for_a_message() -> None:
    """Receiving and acknowledging an available message makes no task, and calls the port without waiting."""
    port = SilentPort()
    async with Consumer(port) as consumer:
        publish(port.topic, *[b"x"] * 3)
        before = asyncio.all_tasks()
        messages = [await consumer.receive() for _ in range(3)]
        assert [message.id.entry for message in messages] == [0, 1, 2]
        acknowledging = asyncio.create_task(messages[0].ack())
        await turns()
        assert asyncio.all_tasks() - before == {acknowledging}
        ((asked, done),) = port.asked
        assert asked == messages[0].id
        done(None)
        await acknowledging
        assert consumer.statistics().acked == 1


@virtual_time
async def test_order_is_kept_beside_calls_that_wait() -> None:
    """Of waiting calls and a later one, the first to call gets the first message."""
    port = NowaitPort()
    async with Consumer(port) as consumer:
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        await turns()
        publish(port.topic, *digits(4))
        later = asyncio.create_task(consumer.receive())
        seen = [(await task).data for task in (*waiting, later)]
        assert seen == [b"0", b"1", b"2"]
        assert (await consumer.receive()).data == b"3"


@virtual_time
async def test_calls_for_one_message_share_an_acknowledgement() -> None:
    """Two calls ask the port once; a cancelled one stops neither the other nor the acknowledgement."""
    port = SilentPort()
    async with Consumer(port) as consumer:
        message = await new_message(port, consumer)
        first, second = (asyncio.create_task(consumer.acknowledge(message.id)) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        assert len(port.asked) == 1
        with pytest.raises(AlreadySettledError):
            await message.nack()
        port.asked[0][1](None)
        await second
        assert first.cancelled()
        await message.ack()
        assert len(port.asked) == 1


@pytest.mark.parametrize("is_at_once", [True, False])
@virtual_time
async def test_a_refused_acknowledgement_changes_nothing(is_at_once: bool) -> None:
    """Whether the port refuses at once or later, the call raises, and the message can be acknowledged again."""
    port = SilentPort()
    async with Consumer(port) as consumer:
        message = await new_message(port, consumer)
        refusal = BrokerError("no")
        port.refusal = refusal if is_at_once else None
        acknowledging = asyncio.create_task(message.ack())
        await turns()
        for _, done in port.asked:
            done(refusal)
        with pytest.raises(BrokerError, match="no"):
            await acknowledging
        assert consumer.statistics().in_work == 1
        port.refusal = None
        acknowledging = asyncio.create_task(message.ack())
        await turns()
        port.asked[-1][1](None)
        await acknowledging
        assert consumer.statistics().in_work == 0


@virtual_time
async def test_closing_gives_up_what_is_not_answered() -> None:
    """Closing waits for answers for ``close_timeout``, then the calls raise; a later answer has no effect."""
    port = SilentPort()
    consumer = await Consumer(port, config=NackConfig(close_timeout=2.0)).open()
    publish(port.topic, *[b"x"] * 2)
    messages = [await consumer.receive() for _ in range(2)]
    acknowledging = [asyncio.create_task(message.ack()) for message in messages]
    await turns()
    began = asyncio.get_running_loop().time()
    closing = asyncio.create_task(consumer.aclose())
    await asyncio.sleep(1.0)
    port.asked[0][1](None)
    await acknowledging[0]
    await closing
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)
    with pytest.raises(ClosedError):
        await acknowledging[1]
    port.asked[1][1](None)
    assert consumer.statistics().acked == 1


@virtual_time
async def test_closing_ends_when_all_is_answered() -> None:
    """Closing continues as soon as the last answer arrives."""
    port = SilentPort()
    consumer = await Consumer(port).open()
    port.topic.publish(b"x")
    acknowledging = asyncio.create_task((await consumer.receive()).ack())
    await turns()
    closing = asyncio.create_task(consumer.aclose())
    await asyncio.sleep(1.0)
    assert not closing.done()
    port.asked[0][1](None)
    await asyncio.gather(acknowledging, closing)
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [FakePort, NowaitPort])
@virtual_time
async def test_acknowledging_without_waiting(kind: type[FakePort]) -> None:
    """``ack_soon`` returns at once, by message and by id, asks the port once for each, and closing waits for it."""
    port = kind()
    async with Consumer(port) as consumer:
        publish(port.topic, *[b"x"] * 3)
        first, second, third = [await consumer.receive() for _ in range(3)]
        first.ack_soon()
        first.ack_soon()
        consumer.acknowledge_soon(first)
        consumer.acknowledge_soon(second.id)
        with pytest.raises(AlreadySettledError):
            await first.nack()
        await first.ack()
        await turns()
        assert consumer.statistics().acked == 2
        port.delay_next("acknowledge", 1.0)
        third.ack_soon()
        await asyncio.sleep(0)
    assert sum(len(ids) for ids in port.requests("acknowledge")) == 3
    with pytest.raises(ClosedError):
        third.ack_soon()
    with pytest.raises(ClosedError):
        consumer.acknowledge_soon(third.id)


@pytest.mark.parametrize("kind", [FakePort, NowaitPort])
@virtual_time
async def test_a_failure_that_nobody_waits_for_is_a_nack(
    kind: type[FakePort], caplog: pytest.LogCaptureFixture
) -> None:
    """If ``ack_soon`` fails the message is redelivered after the consumer's delay, and a warning says so."""
    port = kind()
    async with Consumer(port, config=NackConfig(negative_ack_redelivery_delay=2.0)) as consumer:
        message = await new_message(port, consumer)
        port.fail_next("acknowledge", error=BrokerError("no"))
        message.ack_soon()
        again = await consumer.receive(timeout=10)
        assert again.attempt == 2
        assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.3)
        assert "could not be acknowledged" in caplog.text
        await again.ack()
        assert consumer.statistics().unacked == 0


@virtual_time
async def test_a_port_that_refuses_at_once_is_heard() -> None:
    """``ack_soon`` raises what the port raises at once, and nothing has changed."""
    port = SilentPort()
    async with Consumer(port) as consumer:
        message = await new_message(port, consumer)
        port.refusal = BrokerError("no")
        with pytest.raises(BrokerError, match="no"):
            message.ack_soon()
        assert consumer.statistics().in_work == 1
        await message.nack(delay=0.1)
        assert (await consumer.receive(timeout=1)).attempt == 2


@pytest.mark.parametrize("kind", [FailingPort, FailingNowaitPort])
@virtual_time
async def test_a_cancelled_ack_does_not_hear_for_another(kind: type[FailingPort]) -> None:
    """No caller learns that ``ack_soon`` failed beside it, so the message comes again; a waiting ack does."""
    port = kind()
    async with Consumer(port, config=NackConfig(negative_ack_redelivery_delay=2.0)) as consumer:
        publish(port.topic, *[b"x"] * 2)
        first, second = await consumer.receive(), await consumer.receive()
        port.is_failing = True
        cancelled, waiting = [asyncio.create_task(message.ack()) for message in (first, second)]
        await turns()
        first.ack_soon()
        second.ack_soon()
        await asyncio.sleep(0.5)
        cancelled.cancel()
        with pytest.raises(BrokerError):
            await waiting
        again = await consumer.receive(timeout=10)
        assert (again.id, again.attempt) == (first.id, 2)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=10)
        port.is_failing = False
        await second.ack()


@pytest.mark.parametrize("kind", [FailingPort, FailingNowaitPort])
@virtual_time
async def test_a_message_whose_ack_was_cancelled_and_failed_is_redelivered(kind: type[FailingPort]) -> None:
    """No caller learns of the failure, and a nack meanwhile was refused for the ack: the message comes again."""
    port = kind()
    async with Consumer(port, config=NackConfig(negative_ack_redelivery_delay=2.0)) as consumer:
        message = await new_message(port, consumer)
        port.is_failing = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(message.ack(), 0.5)
        with pytest.raises(AlreadySettledError):
            await message.nack()
        again = await consumer.receive(timeout=10)
        assert again.attempt == 2
        port.is_failing = False
        await again.ack()
        assert port.subscription.backlog == 0


@virtual_time
async def test_a_message_is_delivered_where_all_others_are_being_acknowledged() -> None:
    """With a limit of one, a message that comes during several open acknowledgements is not forgotten at once."""
    port = SilentPort(receiver_queue_size=50)
    async with Consumer(port, unacked_limit=51) as consumer:
        port.topic.publish_batch([b"%d" % number for number in range(20)])
        for number in range(20):
            message = await consumer.receive(timeout=1)
            assert message.data == b"%d" % number
            message.ack_soon()
        for _, done in port.asked:
            done(None)
        assert consumer.statistics().in_work == 0
        consumer._engine.table._check()


class ClosingPort(NowaitPort):
    """Is closed by another caller while it delivers a message."""

    is_gone = False

    async def receive(self) -> Delivery:
        """Return the first message only."""
        self._check_gone()
        delivery = await super().receive()
        self.is_gone = True
        return delivery

    def receive_nowait(self) -> Delivery | None:
        """Return the next message, if it is there."""
        self._check_gone()
        return super().receive_nowait()

    def _check_gone(self) -> None:
        if self.is_gone:
            raise ClosedError("the port")


@virtual_time
async def test_a_port_that_is_closed_while_calls_wait_ends_them() -> None:
    """The message that came goes to the first call, the others raise; closing the consumer raises nothing."""
    port = ClosingPort()
    async with Consumer(port) as consumer:
        first, second = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        await turns()
        port.topic.publish(b"x")
        assert (await first).data == b"x"
        with pytest.raises(ClosedError, match="port"):
            await second


@pytest.mark.parametrize("kind", [SlowPort, SlowNowaitPort])
@pytest.mark.parametrize("is_nacked", [False, True])
@virtual_time
async def test_a_confirmation_from_before_a_seek_touches_nothing_after_it(
    kind: type[SlowPort], is_nacked: bool
) -> None:
    """An acknowledgement that is confirmed after a seek ends its call; the message stays delivered, or nacked."""
    port = kind()
    async with Consumer(port) as consumer:
        message = await new_message(port, consumer)
        acknowledging = asyncio.create_task(message.ack())
        await turns()
        await consumer.seek(MessageId(-1, -1))
        again = await consumer.receive(timeout=1)
        assert again.id == message.id
        if is_nacked:
            await again.nack(delay=2)
        port.confirmed.set()
        await acknowledging
        if not is_nacked:
            assert consumer.statistics().in_work == 1
            await again.nack(delay=2)
        assert consumer.statistics().held == 1
        assert (await consumer.receive(timeout=3)).id == message.id


@pytest.mark.parametrize("make", [FailingPort, FailingNowaitPort])
@virtual_time
async def test_what_could_not_be_acknowledged_after_a_seek_can_be_nacked(make: Callable[..., FailingPort]) -> None:
    """Its attempts are no longer known, and the duplicate that came meanwhile was not delivered."""
    port = make(latency=0.01)
    port.topic.publish(b"x")
    async with Consumer(port) as consumer:
        message = await consumer.receive()
        await message.nack(delay=0)
        message = await consumer.receive()
        await consumer.seek(0)
        port.is_failing = True
        with pytest.raises(BrokerError):
            await message.ack()
        port.is_failing = False
        await message.nack(delay=0.1)
        again = await consumer.receive(timeout=5)
        assert again.id == message.id
        await again.ack()
        assert consumer.statistics().in_work == 0


@virtual_time
async def test_a_consumer_shows_what_it_is() -> None:
    """The consumer's repr has its state, and the number of unacknowledged messages."""
    port = NowaitPort()
    consumer = Consumer(port)
    assert "not open" in repr(consumer)
    async with consumer:
        port.topic.publish(b"x")
        await consumer.receive()
        assert "1 unacked" in repr(consumer)
    assert "closed" in repr(consumer)
