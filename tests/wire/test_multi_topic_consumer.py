"""Several topics and partitions as one: all or nothing at first, new ones later, ids find their own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from pulsar_nack import BrokerError, MessageId
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import SessionEvent
from pulsar_nack.wire import ClientOptions, SubscribeOptions
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._consumer._multi_topic_consumer import MultiTopicConsumer
from pulsar_nack.wire._consumer._selection import selection_of

from .stand_ins import Ended, FakeLookup, FakeMember

BASE = "persistent://public/default/"
PARTED = f"{BASE}parted-partition-"


class Maker:
    """Stands for the class of topic consumers: makes fakes and keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pulsar_nack.wire._consumer._multi_topic_consumer.TopicConsumer", self)
        self.made: dict[str, Any] = {}
        self.options: dict[str, SubscribeOptions] = {}
        self.fails: dict[str, Mapping[str, Exception]] = {}
        self.gone: list[str] = []

    def __call__(
        self, _context: Any, name: str, options: SubscribeOptions, _sink: Any, *, partition: int, **_: Any
    ) -> Any:
        self.options[name] = options
        self.made[name] = FakeMember(name, partition, fails=self.fails.get(name))
        return self.made[name]

    def members(self, topic: Any, lookup: FakeLookup) -> MultiTopicConsumer:
        """Members of a selection, made here."""

        def on_event(event: SessionEvent, topic: str, _partition: int) -> None:
            assert event is SessionEvent.INACTIVE
            self.gone.append(topic)

        context = ClientContext(
            pool=None,  # type: ignore[arg-type]
            lookup=lookup,  # type: ignore[arg-type]
            options=ClientOptions(),
            loop=asyncio.get_running_loop(),
            clock=LoopClock(),
        )
        options = SubscribeOptions("sub", receiver_queue_size=20_000)
        made = MultiTopicConsumer(context, selection_of(topic), options)
        made.on_event = on_event
        return made


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    """What makes the consumers of topics."""
    return Maker(monkeypatch)


async def test_all_are_opened(maker: Maker) -> None:
    """Every partition is opened, knows its number, and has its share of what is prefetched."""
    members = maker.members("parted", FakeLookup(parted=3))
    await members.open()
    assert [(member.partition, member.is_connected) for member in maker.made.values()] == [
        (number, True) for number in range(3)
    ]
    options = maker.options.values()
    assert {(each.receiver_queue_size, each.initial_position) for each in options} == {(16_666, "latest")}
    assert members.may_grow
    assert await members.aclose() is None
    assert not any(member.is_connected for member in maker.made.values())


async def test_one_that_fails_closes_all(maker: Maker) -> None:
    """When one cannot be opened, its own error is raised, with the topic's name, and all are closed."""
    maker.fails[f"{PARTED}1"] = {"open": BrokerError("full")}
    members = maker.members("parted", FakeLookup(parted=3))
    with pytest.raises(BrokerError, match=rf"^subscribing to {PARTED}1 as 'sub': full$"):
        await members.open()
    assert all(member.calls[-1][0] == "aclose" for member in maker.made.values())
    assert len(members) == 0


async def test_closing_goes_on_after_an_error(maker: Maker) -> None:
    """All are closed though one fails, and its error is returned."""
    maker.fails[f"{BASE}a"] = {"aclose": BrokerError("lost")}
    members = maker.members(["a", "b"], FakeLookup(a=0, b=0))
    await members.open()
    assert str(await members.aclose()) == "lost"
    assert maker.made[f"{BASE}b"].calls[-1] == ("aclose", None)


async def test_new_partitions_join(maker: Maker) -> None:
    """A new partition is consumed from its beginning; one that cannot be opened is tried again the next time."""
    lookup = FakeLookup(parted=1)
    members = maker.members("parted", lookup)
    await members.open()
    lookup.topics_by_name[f"{BASE}parted"] = 3
    maker.fails[f"{PARTED}2"] = {"open": BrokerError("not yet")}
    await members.refresh()
    assert len(members) == 2
    assert maker.options[f"{PARTED}1"].initial_position == "earliest"
    assert maker.made[f"{PARTED}2"].calls == [("open", None), ("aclose", None)]
    maker.fails.clear()
    await members.refresh()
    assert len(members) == 3
    assert maker.made[f"{PARTED}1"].calls == [("open", None)]
    lookup.topics_by_name[f"{BASE}parted"] = 0
    await members.refresh()
    assert maker.gone == []


async def test_topics_of_a_pattern_come_and_go(maker: Maker) -> None:
    """O9: a topic that matches joins when it appears, and leaves when it is deleted."""
    lookup = FakeLookup(orders=0)
    members = maker.members(re.compile("orders.*"), lookup)
    await members.open()
    lookup.topics_by_name |= {f"{BASE}orders-b": 2, f"{BASE}bills": 0}
    del lookup.topics_by_name[f"{BASE}orders"]
    await members.refresh()
    assert len(members) == 2
    assert maker.gone == [f"{BASE}orders"]
    assert maker.made[f"{BASE}orders"].calls[-2:] == [("on_topic_deleted", None), ("aclose", None)]
    with pytest.raises(BrokerError, match="no topic of this consumer"):
        members.of(MessageId(1, 2, topic=f"{BASE}bills"))


async def test_a_topic_that_was_deleted_has_nothing_to_do(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    """Its acknowledgements succeed, and requests are dropped and reported each time; one log line says so."""
    caplog.set_level("INFO")
    lookup = FakeLookup(orders=0)
    members = maker.members(re.compile("orders.*"), lookup)
    await members.open()
    left = MessageId(1, 2, topic=f"{BASE}orders")
    del lookup.topics_by_name[f"{BASE}orders"]
    await members.refresh()
    member = members.of(left)
    answers = Ended()
    member.acknowledge_soon(left, "token", answers)
    assert answers == []
    await asyncio.sleep(0)
    assert answers == [("token", None)]
    await member.acknowledge([left])
    await member.acknowledge_cumulative(left)
    member.redeliver_nowait([left])
    assert maker.gone == [f"{BASE}orders"] * 2
    assert [record.message for record in caplog.records if "was deleted" in record.message] == [
        f"{BASE}orders was deleted: acknowledgements and nacks of its messages have no effect"
    ]
    with pytest.raises(BrokerError, match="was deleted"):
        await member.seek(left)
    lookup.topics_by_name[f"{BASE}orders"] = 0
    await members.refresh()
    assert members.of(left) is maker.made[f"{BASE}orders"]


async def test_what_leaves_while_all_is_closed_is_closed_with_it(maker: Maker) -> None:
    """Looking for topics that is cancelled leaves the end of those that leave to closing, which waits for it."""
    lookup = FakeLookup(orders=0)
    members = maker.members(re.compile("orders.*"), lookup)
    await members.open()
    leaving = maker.made[f"{BASE}orders"]
    may_end = asyncio.Event()

    async def aclose() -> None:
        leaving.calls.append(("aclose", None))
        await may_end.wait()
        leaving.is_connected = False

    leaving.aclose = aclose
    del lookup.topics_by_name[f"{BASE}orders"]
    looking = asyncio.create_task(members.refresh())
    while leaving.calls[-1][0] != "aclose":
        await asyncio.sleep(0)
    looking.cancel()
    closing = asyncio.create_task(members.aclose())
    await asyncio.wait([closing], timeout=0.01)
    assert not closing.done()
    may_end.set()
    assert await closing is None
    assert not leaving.is_connected


async def test_ids_of_one_topic(maker: Maker) -> None:
    """On one topic any id is of it, unless it names another."""
    members = maker.members("plain", FakeLookup(plain=0))
    await members.open()
    for message_id in (MessageId(1, 2), MessageId(1, 2, topic="plain"), MessageId(1, 2, topic=f"{BASE}plain")):
        assert members.of(message_id) is maker.made[f"{BASE}plain"]
    with pytest.raises(BrokerError, match="other"):
        members.of(MessageId(1, 2, topic="other"))


async def test_ids_of_partitions(maker: Maker) -> None:
    """On a topic with partitions the number of the partition is enough; without it the id is of none."""
    members = maker.members("parted", FakeLookup(parted=2))
    await members.open()
    for topic in (None, "parted", f"{BASE}parted", f"{PARTED}1"):
        assert members.of(MessageId(1, 2, 1, topic=topic)) is maker.made[f"{PARTED}1"]
    for wrong in (MessageId(1, 2), MessageId(1, 2, 2)):
        with pytest.raises(BrokerError, match="no topic of this consumer"):
            members.of(wrong)


async def test_ids_of_several_topics(maker: Maker) -> None:
    """Among several topics an id has to name its own; ids are grouped by their topics."""
    members = maker.members(["a", "b"], FakeLookup(a=0, b=2))
    await members.open()
    ids = [MessageId(1, number, topic=f"{BASE}a") for number in range(2)]
    other = MessageId(2, 0, 1, topic="b")
    assert members.grouped([ids[0], other, ids[1]]) == {
        maker.made[f"{BASE}a"]: ids,
        maker.made[f"{BASE}b-partition-1"]: [other],
    }
    with pytest.raises(BrokerError, match="names none"):
        members.of(MessageId(1, 0))
