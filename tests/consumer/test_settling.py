"""Settling: acknowledgements that a seek overtakes, that cover more, that fail, and that come first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pulsar_nack import AlreadySettledError, BrokerError, Consumer, DeadLetterPolicy, InvalidArgumentError, MessageId
from pulsar_nack.consumer import AcksDone
from pulsar_nack.errors import AcknowledgeError, WrongLoopError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import EXACT, all_that_comes, digits, new_message, now, publish
from tests.consumer.durable import Machine
from tests.consumer.nowait_port import NowaitPort
from tests.consumer.ports import Ports
from tests.for_each import for_each

T = TypeVar("T")


async def delivered(consumer: Consumer, seconds: float = 5.0) -> list[bytes]:
    """Receive until nothing comes for a while; nothing is acknowledged."""
    return [message.data async for message in all_that_comes(consumer, seconds)]


@pytest.mark.parametrize("call", ["ack", "nack"])
@pytest.mark.parametrize(("ending", "attempt"), [("nack", 3), ("defer", 2)])
@virtual_time
async def test_a_nacked_attempt_is_over_once_the_next_one_was_delivered(
    ports: Ports, call: str, ending: str, attempt: int
) -> None:
    """U3: a second call for the first attempt raises while the second one runs, and after it ended without an ack."""
    port = ports.port()
    async with Consumer(port, backoff=0.25) as consumer:
        first = await new_message(port, consumer)
        await first.nack()
        second = await consumer.receive()
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await getattr(first, call)()
        await getattr(second, ending)(5)
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await getattr(first, call)()
        assert await delivered(consumer, 4) == []
        assert (await consumer.receive()).attempt == attempt


class _RefusingPort(NowaitPort):
    """Refuses an acknowledgement in the turn of the loop in which its waiting calls are cancelled."""

    to_cancel: Sequence[asyncio.Future[None]]

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Refuse it in the next turn."""

        def refuse() -> None:
            done([token], BrokerError("lost"))
            for call in self.to_cancel:
                call.cancel()

        asyncio.get_running_loop().call_soon(refuse)


@pytest.mark.parametrize("what", ["message", "id", "list"])
@virtual_time
async def test_a_call_that_is_cancelled_when_its_acknowledgement_fails(what: str) -> None:
    """No caller learns of the failure, so the message is redelivered, as if it had been nacked."""
    port = _RefusingPort()
    port.topic.publish(b"x")
    async with Consumer(port, backoff=0.25, config=EXACT) as consumer:
        message = await consumer.receive()
        given: Any = {"message": message, "id": message.id, "list": [message]}[what]
        port.to_cancel = [asyncio.ensure_future(consumer.acknowledge(given))]
        await asyncio.wait(port.to_cancel)
        assert port.to_cancel[0].cancelled()
        assert (await consumer.receive(timeout=1)).attempt == 2


@pytest.mark.parametrize("cancelled", [1, 2, 3])
@virtual_time
async def test_some_calls_that_are_cancelled_when_their_acknowledgement_fails(cancelled: int) -> None:
    """A message that several calls acknowledge is redelivered if all are cancelled; else one learns of the failure."""
    port = _RefusingPort()
    port.topic.publish(b"x")
    async with Consumer(port, backoff=0.25, config=EXACT) as consumer:
        message = await consumer.receive()
        given: list[Any] = [message, message.id, [message.id]]
        calls = [asyncio.ensure_future(consumer.acknowledge(each)) for each in given]
        port.to_cancel = calls[:cancelled]
        await asyncio.wait(calls)
        assert [call.cancelled() for call in calls] == [number < cancelled for number in range(3)]
        assert all(isinstance(call.exception(), BrokerError | AcknowledgeError) for call in calls[cancelled:])
        assert await delivered(consumer, 1) == ([b"x"] if cancelled == len(calls) else [])


class _RaisingTrace:
    """A broken trace: recording one kind of event raises."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def source(self, *_: str, **__: str) -> Callable[..., None]:
        """Return a recorder that raises."""

        def note(kind: str, *_: object, **__: object) -> None:
            if kind == self.kind:
                raise RuntimeError("a fault")

        return note


@pytest.mark.parametrize("port_type", [FakePort, NowaitPort])
@pytest.mark.parametrize("kind", ["ack", "error"])
@virtual_time
async def test_a_trace_that_raises_at_the_end_of_an_acknowledgement(kind: str, port_type: type[FakePort]) -> None:
    """Its caller gets the outcome; the fault is raised by the consumer, or reported to the loop."""
    port, found = port_type(), list[BaseException]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context["exception"]))
    port.topic.publish(b"x")
    consumer = await Consumer(port, trace=_RaisingTrace(kind)).open()
    message = await consumer.receive()
    if kind == "error":
        port.fail_next("acknowledge")
    async with asyncio.timeout(10):
        with nullcontext() if kind == "ack" else pytest.raises(BrokerError, match="acknowledge failed"):
            await message.ack()
    try:
        await consumer.aclose()
    except ExceptionGroup as group:
        found += group.exceptions
    assert [str(fault) for fault in found] == ["a fault"]


# --- ports without session events ---


@pytest.mark.not_on("wire", "local", reason="they report their sessions")
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize(("seconds", "is_hidden"), [(9.0, True), (12.0, False)])
@virtual_time
async def test_an_acknowledgement_hides_for_ten_seconds(
    ports: Ports, seconds: float, is_hidden: bool, is_durable: bool
) -> None:
    """O1, O2, O3, O58: without session events, a message acknowledged longer ago is delivered again."""
    machine = Machine(ports).publish(b"0")
    machine.topic.publish_batch([b"1", b"2"])
    settings: dict[str, Any] = {} if is_durable else {"durable": None}
    async with machine.consuming(**settings) as consumer:
        for _ in range(3):
            await (await consumer.receive()).ack()
        await asyncio.sleep(seconds)
        port: Any = consumer.port
        port.subscription.reset()
        assert await delivered(consumer) == ([] if is_hidden else [b"0", b"1", b"2"])
        assert port.subscription.backlog == (0 if is_hidden else 3)


# --- seek ---


@pytest.mark.not_on("wire", "local", reason="their calls are not delayed one by one")
@pytest.mark.parametrize("way", ["ack", "dead letter"])
@virtual_time
async def test_a_seek_overtakes_acknowledgements(ports: Ports, way: str) -> None:
    """O49: a durable consumer seeks while acks, or dead letters, are being sent: it forgets them."""
    machine, letters = Machine(ports), FakePublisher(latency=0.5 if way == "dead letter" else 0.0)
    publish(machine.topic, *digits(3))
    port: Any = machine.port()
    dead = DeadLetterPolicy(9, "dead", publisher=letters)
    async with machine.consuming(port=port, dead_letter=dead) as consumer:
        messages = [await consumer.receive() for _ in range(3)]
        if way == "ack":
            port.delay_next("acknowledge", 0.5, 3)
        port.delay_next("seek", 0.6)
        calls = [asyncio.ensure_future(each.ack() if way == "ack" else each.dead_letter()) for each in messages]
        await asyncio.sleep(0.1)
        await consumer.seek(messages[0].id)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {AlreadySettledError if way == "dead letter" else type(None)}
        assert await delivered(consumer) == [b"0", b"1", b"2"]
        assert consumer.statistics().durable_acks == 0
    async with machine.consuming() as consumer:
        assert sorted(await delivered(consumer)) == [b"0", b"1", b"2"]


@pytest.mark.not_on("wire", "local", reason="their calls are not delayed one by one")
@virtual_time
async def test_an_ack_that_was_not_sent_when_a_seek_came_is_not_sent(ports: Ports) -> None:
    """O49: an acknowledgement that had not left the consumer does not settle the message after the seek."""
    machine = Machine(ports).publish(b"x")
    port: Any = machine.port()
    async with machine.consuming(port=port) as consumer:
        message = await consumer.receive()
        acking = asyncio.ensure_future(message.ack())
        await asyncio.sleep(0)
        await consumer.seek(message.id)
        await acking
        assert await delivered(consumer) == [b"x"]
        assert port.subscription.backlog == 1


REFUSED = {
    "fake": MessageId(1, 1),  # names no partition
    "nowait": MessageId(1, 1),
    "wire": MessageId(1, 1, topic="persistent://public/default/other"),
    "local": MessageId(99, 0),  # beyond the end
}


@pytest.mark.each_kind
@pytest.mark.parametrize("is_durable", [False, True])
@virtual_time
async def test_a_seek_that_the_port_refuses_changes_nothing(ports: Ports, *, is_durable: bool) -> None:
    """U35: a nack keeps its deadline, an attempt its count, and a dead letter is published."""
    letters = FakePublisher()
    topic = ports.topic(**({"partitions": 1} if ports.kind in {"fake", "nowait"} else {}))
    machine = Machine(ports, topic)
    options: dict[str, Any] = {"dead_letter": DeadLetterPolicy(9, "dead", publisher=letters), "config": EXACT}
    options |= {} if is_durable else {"durable": None}
    async with machine.consuming(**options) as consumer:
        publish(topic, *digits(4))
        nacked, in_work, dead, acked = [await consumer.receive() for _ in range(4)]
        await acked.ack()
        await nacked.nack(5)
        letters.hold()
        sending = asyncio.create_task(dead.dead_letter("bad"))
        await asyncio.sleep(0.1)
        before, at = consumer.statistics(), now()
        with pytest.raises((BrokerError, InvalidArgumentError)):
            await consumer.seek(REFUSED[ports.kind])
        assert consumer.statistics() == before
        letters.release()
        await sending
        await in_work.ack()
        again = await consumer.receive()
        assert (again.data, again.attempt) == (b"0", 2)
        assert now() - at == pytest.approx(4.9, abs=0.01)
        await again.ack()
        assert await delivered(consumer) == []
        assert [letter.data for letter in letters.letters] == [b"2"]


# --- cumulative ---


@pytest.mark.parametrize("is_durable", [False, True])
@virtual_time
async def test_what_a_cumulative_ack_covers_is_settled(ports: Ports, is_durable: bool) -> None:
    """O50: after a cumulative ack, nack and dead letter of covered messages raise, and an ack does nothing."""
    machine, letters = Machine(ports, subscription_type="exclusive"), FakePublisher()
    publish(machine.topic, *digits(5))
    port: Any = machine.port()
    settings: dict[str, Any] = {"port": port, "dead_letter": DeadLetterPolicy(2, "dead", publisher=letters)}
    settings |= {} if is_durable else {"durable": None}
    async with machine.consuming(**settings) as consumer:
        messages = [await consumer.receive() for _ in range(5)]
        await messages[0].nack(1)
        await consumer.acknowledge_cumulative(messages[3])
        for call in (
            messages[0].nack(0.1),
            messages[1].nack(0.1),
            messages[2].dead_letter("x"),
            consumer.negative_acknowledge(messages[3].id, 0.1),
        ):
            with pytest.raises(AlreadySettledError):
                await call
        before = len(port.requests("acknowledge")) if ports.kind in {"fake", "nowait"} else 0
        await messages[1].ack()
        await consumer.acknowledge(messages[2].id)
        if ports.kind in {"fake", "nowait"}:
            assert len(port.requests("acknowledge")) == before
        assert await delivered(consumer) == []
        assert letters.letters == []
        figures = consumer.statistics()
        assert (figures.held, figures.in_work, figures.acked) == (0, 1, 4)
        await messages[4].nack(0.1)
        assert await delivered(consumer) == [b"4"]


@pytest.mark.each_kind
@for_each("how", ["redelivered", "deferred", "nacked meanwhile"])
@virtual_time
async def test_a_cumulative_ack_of_a_message_is_refused_where_its_ack_is(ports: Ports, how: str) -> None:
    """O50: its attempt is over: both raise, and it comes again; the id belongs to no attempt and is accepted."""
    port = ports.port(subscription_type="exclusive")
    async with Consumer(port) as consumer:
        first = await new_message(port, consumer)
        if how == "redelivered":
            await first.nack(0.25)
            again = await consumer.receive()
        elif how == "deferred":
            await first.defer(1)
        else:
            nacking = asyncio.create_task(first.nack(1))
            await asyncio.sleep(0)
        for call in (first.ack(), consumer.acknowledge_cumulative(first)):
            with pytest.raises(AlreadySettledError):
                await call
        if how == "nacked meanwhile":
            await nacking
        if how != "redelivered":
            again = await consumer.receive()
        await consumer.acknowledge_cumulative(first.id)
        assert (await delivered(consumer), port.subscription.backlog) == ([], 0)
        await consumer.acknowledge_cumulative(again)
        assert again.settled_by == "acknowledge"


@virtual_time
async def test_a_cumulative_ack_that_fails_changes_nothing(ports: Ports) -> None:
    """O50: on a Shared subscription it fails; the message is as it was, and can be nacked or acknowledged."""
    port = ports.port()
    async with Consumer(port) as consumer:
        publish(port.topic, b"0", b"1")
        new, nacked = [await consumer.receive() for _ in range(2)]
        await nacked.nack(1)
        for message, before in ((new, None), (nacked, "negative_acknowledge")):
            with pytest.raises((BrokerError, InvalidArgumentError)):
                await consumer.acknowledge_cumulative(message)
            assert message.settled_by == before
        await new.nack(2)
        assert await delivered(consumer) == [b"1", b"0"]


@pytest.mark.not_on("local", reason="its topics have no partitions")
@pytest.mark.not_on("wire", reason="this stand-in has one topic")
@virtual_time
async def test_a_cumulative_ack_is_of_its_partition_and_of_the_batch_up_to_its_member(ports: Ports) -> None:
    """O50: earlier members and chunks are covered; later members, and another partition, are not."""
    topic, letters = ports.topic(partitions=2, batch_index_ack=True), FakePublisher()
    topic.publish_chunked([b"c", b"d"])  # partition 0
    topic.publish_batch([b"0", b"1", b"2"], partition=0)
    topic.publish(b"x", partition=1)
    port: Any = ports.port(topic, subscription_type="exclusive")
    async with Consumer(port, dead_letter=DeadLetterPolicy(9, "dead", publisher=letters)) as consumer:
        by_data = {message.data: message for message in [await consumer.receive() for _ in range(5)]}
        await consumer.acknowledge_cumulative(by_data[b"1"])
        for data in (b"cd", b"0", b"1"):
            with pytest.raises(AlreadySettledError):
                await by_data[data].nack(0.1)
            with pytest.raises(AlreadySettledError):
                await by_data[data].dead_letter("x")
            with pytest.raises(AlreadySettledError):
                await consumer.negative_acknowledge(by_data[data].id, 0.1)
        for data in (b"2", b"x"):
            await by_data[data].nack(0.1)
        assert sorted(await delivered(consumer)) == [b"2", b"x"]
        assert letters.letters == []


# --- by id ---


@pytest.mark.not_on("local", reason="a local topic refuses no acknowledgement of a message that it has")
@pytest.mark.not_on("wire", reason="so does the scripted broker, over this port")
@pytest.mark.parametrize("has_come_meanwhile", [False, True])
@pytest.mark.parametrize("is_soon", [False, True])
@virtual_time
async def test_a_failed_ack_of_what_was_never_received(ports: Ports, has_come_meanwhile: bool, is_soon: bool) -> None:
    """O51: an acknowledgement by id fails before its message was received: the message is delivered when it comes."""
    port: Any = ports.port()
    message_id = port.topic.publish(b"x")
    async with Consumer(port) as consumer:
        port._add_fault("acknowledge", Fault(delay=1.0, error=BrokerError("as the test wants it")), 1)
        if is_soon:
            consumer.acknowledge_soon(message_id)
        else:
            acking = asyncio.ensure_future(consumer.acknowledge(message_id))
        await asyncio.sleep(0.1)
        if has_come_meanwhile:
            assert await delivered(consumer, 0.5) == []
        await asyncio.sleep(2)
        if not is_soon:
            with pytest.raises(BrokerError):
                await acking
        assert await delivered(consumer) == [b"x"]
        assert consumer.statistics().in_work == 1
        assert port.subscription.backlog == 1


@pytest.mark.not_on("local", reason="a local topic knows of members when their batch is here")
@virtual_time
async def test_members_that_are_acknowledged_before_they_come(ports: Ports) -> None:
    """O6: members of a batch, acknowledged by their ids before they were received, are not delivered."""
    port: Any = ports.port()
    ids = port.topic.publish_batch([b"0", b"1", b"2"])
    async with Consumer(port) as consumer:
        await consumer.acknowledge(ids[1])
        assert await delivered(consumer) == [b"0", b"2"]


@pytest.mark.not_on("local", "wire", reason="as above")
@pytest.mark.parametrize("is_soon", [False, True])
@virtual_time
async def test_a_failed_ack_of_a_member_that_was_never_received(ports: Ports, is_soon: bool) -> None:
    """O51: of a batch too: all its messages are delivered when it comes."""
    port: Any = ports.port(ports.topic(batch_index_ack=True))
    ids = port.topic.publish_batch([b"0", b"1", b"2"])
    async with Consumer(port) as consumer:
        port._add_fault("acknowledge", Fault(delay=1.0, error=BrokerError("as the test wants it")), 1)
        if is_soon:
            consumer.acknowledge_soon(ids[1])
        else:
            with pytest.raises(BrokerError):
                await consumer.acknowledge(ids[1])
        await asyncio.sleep(2)
        assert sorted(await delivered(consumer)) == [b"0", b"1", b"2"]
        assert port.subscription.backlog == 3


# --- opening ---


@pytest.mark.parametrize("is_durable", [False, True])
@virtual_time
async def test_two_tasks_open_one_consumer(tmp_path: Path, ports: Ports, is_durable: bool) -> None:
    """O54: both return when it is open; a cancelled second one leaves it open."""
    port: Any = ports.port()
    publish(port.topic, *digits(2))
    consumer = Consumer(port, durable=tmp_path if is_durable else None)

    async def open_and_receive() -> bytes:
        return (await (await consumer.open()).receive(timeout=5)).data

    working = [asyncio.ensure_future(open_and_receive()) for _ in range(2)]
    await asyncio.sleep(0)
    cancelled = asyncio.ensure_future(consumer.open())
    await asyncio.sleep(0)
    cancelled.cancel()
    assert sorted(await asyncio.gather(*working)) == [b"0", b"1"]
    await consumer.aclose()


def test_opening_in_another_loop() -> None:
    """O54: an open consumer refuses another event loop."""

    async def first() -> None:
        consumer = await Consumer(FakePort()).open()
        loop = asyncio.new_event_loop()
        try:
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(loop.run_until_complete, consumer.open())
        finally:
            loop.close()
        await consumer.aclose()

    asyncio.run(first())


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_an_acknowledgement_by_id_that_fails_while_its_message_is_received(kind: Any) -> None:
    """A `receive` skips the message that is being acknowledged; as that fails, the message comes again."""
    port = FakePort(subscription_type=kind)
    message_id = port.topic.publish(b"x")
    async with Consumer(port, redelivery="local", config=EXACT) as consumer:
        await (await consumer.receive()).nack(0)
        await asyncio.sleep(1)
        port._add_fault("acknowledge", Fault(delay=1, error=BrokerError("lost")), 1)
        acknowledging = asyncio.create_task(consumer.acknowledge(message_id))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.5)
        with pytest.raises(BrokerError, match="lost"):
            await acknowledging
        assert (await consumer.receive(timeout=5)).data == b"x"
