"""The port over the native wire, on members that only note what they are asked for."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, ConsumerPort, Delivery, MessageId
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import (
    SupportsConnectionState,
    SupportsNowait,
    SupportsPositions,
)
from pulsar_nack.testing import run
from pulsar_nack.wire import ClientOptions, SubscribeOptions, WirePort
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._consumer._port import traits_of
from pulsar_nack.wire._consumer._selection import selection_of

from .stand_ins import Ended, FakeLookup, FakeMember

BASE = "persistent://public/default/"


class NoPool:
    """Has no connections."""

    is_closed = False

    async def service(self) -> Any:
        """Fail as an authentication of the user's may."""
        raise RuntimeError("nobody there")


class Stage:
    """Makes ports whose members are fakes."""

    def __init__(self, **topics: int) -> None:
        self.lookup = FakeLookup(**topics)
        self.made: dict[str, FakeMember] = {}
        self.options: dict[str, SubscribeOptions] = {}
        self.sinks: dict[str, Callable[[Delivery, Any], None]] = {}
        self.fails: dict[str, dict[str, Exception]] = {}

    def member(
        self,
        context: ClientContext,
        name: str,
        options: SubscribeOptions,
        sink: Any,
        *,
        partition: int,
        on_event: Any,
        on_unreadable: Any,
        on_missing: Any,
    ) -> FakeMember:
        """Stand for the class that makes members."""
        self.made[name] = FakeMember(name, partition, fails=self.fails.get(name))
        self.on_event, self.on_unreadable = on_event, on_unreadable
        self.options[name] = options
        self.sinks[name] = sink
        return self.made[name]

    async def port(self, topic: Any, **settings: Any) -> WirePort:
        """Open a port."""
        discovery: Any = {name: settings.pop(name) for name in ("discovery_interval",) if name in settings}
        context = ClientContext(
            pool=NoPool(),  # type: ignore[arg-type]
            lookup=self.lookup,  # type: ignore[arg-type]
            options=ClientOptions(),
            loop=asyncio.get_running_loop(),
            clock=LoopClock(),
        )
        return await WirePort.open(context, selection_of(topic), SubscribeOptions("sub", **settings), **discovery)

    def arrive(self, topic: str, entry: int) -> None:
        """Have a message arrive."""
        member = self.made[f"{BASE}{topic}"]
        message_id = MessageId(1, entry, member.partition, topic=member.name)
        self.sinks[member.name](Delivery(message_id, str(entry).encode(), topic=member.name), member)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage with a plain topic and one of two partitions."""
    stage = Stage(plain=0, other=0, parted=2)
    monkeypatch.setattr("pulsar_nack.wire._consumer._multi_topic_consumer.TopicConsumer", stage.member)
    return stage


async def test_it_is_a_port(stage: Stage) -> None:
    """It can all that a consumer may want of a port."""
    port: ConsumerPort = await stage.port("plain")
    for ability in (SupportsNowait, SupportsConnectionState, SupportsPositions):
        assert isinstance(port, ability)
    await port.close()


@pytest.mark.parametrize(
    ("kind", "honours"), [("shared", True), ("key_shared", True), ("exclusive", False), ("failover", False)]
)
def test_traits(kind: Any, honours: bool) -> None:
    """Ids are honoured on shared subscriptions; a redelivery comes at once and is asked for at its time."""
    traits = traits_of(SubscribeOptions("sub", type=kind, receiver_queue_size=7, batch_index_ack=False))
    assert traits.honours_ids is honours
    assert traits.redelivery_latency < 0.001
    assert traits.min_redelivery_delay == 0
    assert (traits.max_ids_per_request, traits.receiver_queue_size, traits.batch_index_ack) == (1_000, 7, False)


async def test_messages_of_all_topics_arrive(stage: Stage) -> None:
    """What arrives on any topic is received in the order of its arrival; what waits for it is woken."""
    port = await stage.port(["plain", "parted"])
    waiting = asyncio.create_task(port.receive())
    await asyncio.sleep(0)
    stage.arrive("parted-partition-1", 0)
    stage.arrive("plain", 1)
    assert (await waiting).id == MessageId(1, 0, 1)
    delivery = port.receive_nowait()
    assert delivery is not None
    assert delivery.data == b"1"
    assert port.receive_nowait() is None
    assert stage.made[f"{BASE}plain"].received == [b"1"]
    await port.close()


async def test_calls_go_to_their_topics(stage: Stage) -> None:
    """Acknowledgements and requests go to the topic or partition of each id; requests for what is gone go nowhere."""
    port = await stage.port("parted")
    one, two = (stage.made[f"{BASE}parted-partition-{number}"] for number in range(2))
    ids = [MessageId(1, entry, entry % 2) for entry in range(4)]
    await port.acknowledge(ids[:1])
    await port.acknowledge(ids)
    await port.redeliver(ids[1:2])
    await port.acknowledge_cumulative(ids[3])
    assert one.calls[1:] == [("acknowledge", ids[:1]), ("acknowledge", [ids[0], ids[2]])]
    assert two.calls[1:] == [
        ("acknowledge", [ids[1], ids[3]]),
        ("redeliver", ids[1:2]),
        ("acknowledge_cumulative", ids[3]),
    ]
    answers = Ended()
    port.acknowledge_soon(ids[0], "token", answers)
    assert answers == []
    await asyncio.sleep(0)
    assert answers == [("token", None)]
    with pytest.raises(BrokerError, match="no topic"):
        port.acknowledge_soon(MessageId(1, 1, 5), "token", answers)
    await port.redeliver([MessageId(1, 1, 5)])
    assert len(one.calls) == 4
    await port.redeliver([ids[0], MessageId(1, 1, 5)])
    assert one.calls[4:] == [("redeliver", ids[:1])]
    await port.close()


async def test_an_error_of_one_topic_is_told(stage: Stage) -> None:
    """When one of several topics refuses, its own error is raised."""
    stage.fails[f"{BASE}other"] = {"acknowledge": BrokerError("not here")}
    port = await stage.port(["plain", "other"])
    with pytest.raises(BrokerError, match=r"^not here$"):
        await port.acknowledge([MessageId(1, 1, topic="plain"), MessageId(2, 1, topic="other")])
    await port.close()


async def test_seeking(stage: Stage) -> None:
    """A message moves its own partition; a time, the earliest and the latest move all; what comes then is received."""
    port = await stage.port("parted")
    one, two = (stage.made[f"{BASE}parted-partition-{number}"] for number in range(2))
    for number in range(2):
        stage.arrive(f"parted-partition-{number}", 5)
    seeking = asyncio.create_task(port.seek(MessageId(1, 3, 1)))
    await asyncio.sleep(0)
    two.epoch += 1
    stage.arrive("parted-partition-1", 3)
    await seeking
    assert ("seek", MessageId(1, 3, 1)) not in one.calls
    assert two.calls[-1] == ("seek", MessageId(1, 3, 1))
    assert [(await port.receive()).id for _ in range(2)] == [MessageId(1, 5, 0), MessageId(1, 3, 1)]
    assert port.receive_nowait() is None
    for position in (1_700_000_000_000, MessageId(-1, -1), MessageId(2**63 - 1, 2**63 - 1)):
        await port.seek(position)
        assert one.calls[-1] == two.calls[-1] == ("seek", position)
    await port.close()


async def test_it_has_ended_when_all_have(stage: Stage) -> None:
    """It has ended when each of its topics has, and not while it has none, as a pattern may."""
    port = await stage.port(["one", "two"])
    one, two = (stage.made[f"{BASE}{name}"] for name in ("one", "two"))
    states = []
    for one.has_ended, two.has_ended in ((False, False), (True, False), (False, True), (True, True)):
        states.append(port.has_ended)
    assert states == [False, False, False, True]
    await port.close()
    port = await stage.port(re.compile(f"{BASE}none-of-these"))
    assert not port.has_ended
    await port.close()


async def test_states_of_all(stage: Stage) -> None:
    """It is connected when all are; on Failover it is active when one of them is, and unknown until all report it."""
    port = await stage.port("parted", type="failover")
    one, two = (stage.made[f"{BASE}parted-partition-{number}"] for number in range(2))
    assert (port.is_connected, port.is_active) == (True, None)
    one.is_active, two.is_active = False, True
    assert (port.is_connected, port.is_active) == (True, True)
    two.is_active, two.is_connected = False, False
    assert (port.is_connected, port.is_active) == (False, False)
    assert [message_id.partition for message_id in await port.last_message_ids()] == [0, 1]
    assert port.names == (f"{BASE}parted", "sub", "")
    await port.close()


async def test_closing(stage: Stage) -> None:
    """Closing, by several at once, closes all members once; calls that wait and later ones are refused."""
    port = await stage.port("parted")
    waiting = asyncio.create_task(port.receive())
    await asyncio.sleep(0)
    stage.made[f"{BASE}parted-partition-0"].fails["aclose"] = BrokerError("gone already")
    first = asyncio.create_task(port.close())
    await asyncio.sleep(0)
    first.cancel()
    await port.close()
    assert port.is_closed
    assert all(member.calls.count(("aclose", None)) == 1 for member in stage.made.values())
    (failed,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(failed, ClosedError)
    for call in (port.receive(), port.acknowledge([MessageId(1, 1, 0)]), port.redeliver([]), port.seek(0)):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(ClosedError):
        port.receive_nowait()


async def test_unsubscribing(stage: Stage) -> None:
    """Unsubscribing does so everywhere, and closes."""
    port = await stage.port("parted")
    await port.unsubscribe()
    assert all(
        [call for call, _ in member.calls] == ["open", "unsubscribe", "aclose"] for member in stage.made.values()
    )
    assert port.is_closed


async def test_many_topics_share_what_is_fetched_ahead(stage: Stage) -> None:
    """With many partitions each fetches less, 50 000 messages in all."""
    stage.lookup.topics_by_name[f"{BASE}parted"] = 100
    port = await stage.port("parted")
    assert {options.receiver_queue_size for options in stage.options.values()} == {500}
    await port.close()


def test_new_topics_are_found(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """At each interval new topics of a pattern are opened at their beginnings; what fails is logged and tried again."""
    with caplog.at_level(logging.INFO, "pulsar_nack.wire"):
        run(_discover(stage))
    told = [record.getMessage() for record in caplog.records]
    assert any("cannot look for new topics" in text for text in told)
    assert any(text.startswith(f"{BASE}plain-2 is new") for text in told)


async def _discover(stage: Stage) -> None:
    port = await stage.port(re.compile("plain.*"), discovery_interval=10)
    stage.lookup.topics_by_name[f"{BASE}plain-2"] = 0
    await asyncio.sleep(9.9)
    assert len(stage.made) == 1
    stage.lookup.fails = True
    await asyncio.sleep(1)
    assert len(stage.made) == 1
    stage.lookup.fails = False
    await asyncio.sleep(10)
    assert stage.options[f"{BASE}plain-2"].initial_position == "earliest"
    assert stage.options[f"{BASE}plain"].initial_position == "latest"
    await port.close()
    assert stage.made[f"{BASE}plain-2"].calls[-1] == ("aclose", None)
    assert len(asyncio.all_tasks()) == 1


async def test_a_plain_topic_is_not_looked_for_again(stage: Stage) -> None:
    """A topic without partitions stays as it is: no task runs beside it."""
    before = len(asyncio.all_tasks())
    port = await stage.port("plain")
    assert len(asyncio.all_tasks()) == before
    await port.close()
