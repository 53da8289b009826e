"""The scripted broker itself: what it does without a script, so that tests on it test what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack.errors import BrokerRefusedError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._handlers import Handler
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import encode_command
from pulsar_nack.wire._protocol._message_commands import MessageCommand
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_link import Pipe
from tests.wire.fake_topics import metadata_of
from tests.wire.frames import command, encode_message, read_message

TOPIC = "persistent://public/default/t"


class Raw:
    """A connection used by hand: commands out, and what came for each consumer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.got: dict[int, list[tuple[int, int, bytes]]] = {}
        self.told: list[tuple[Any, ...]] = []

    @classmethod
    async def open(cls, broker: FakeBroker) -> Raw:
        """Connect."""
        return cls(await Connection.open(Address.parse(broker.url), ClientOptions(), dial=broker.dial))

    async def ask(self, kind: str, part: str, **fields: Any) -> pb.BaseCommand:
        """Send a request, and return the answer."""
        request_id = self.connection.request_id()
        asked = command(kind)
        body = getattr(asked, part)
        body.MergeFrom(type(body)(**fields | {"request_id": request_id}))
        return await self.connection.request(asked, request_id)

    async def tell(self, kind: str, part: str, **fields: Any) -> None:
        """Send a command that is not answered, and wait until all is quiet."""
        sent = command(kind)
        body = getattr(sent, part)
        body.MergeFrom(type(body)(**fields))
        self.connection.send(encode_command(sent))
        await asyncio.sleep(0.1)

    async def subscribe(
        self, consumer_id: int = 1, kind: int = pb.CommandSubscribe.Shared, permits: int = 100, **fields: Any
    ) -> None:
        """Subscribe from the beginning, and ask for messages."""
        self.got[consumer_id] = []
        self.connection.consumers.add(consumer_id, _Events(self, consumer_id))
        usual = {"initialPosition": 1, "topic": TOPIC, "subscription": "s", "subType": kind}
        await self.ask("SUBSCRIBE", "subscribe", **usual | {"consumer_id": consumer_id} | fields)
        await self.flow(permits, consumer_id)

    async def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Ask for messages."""
        await self.tell("FLOW", "flow", consumer_id=consumer_id, messagePermits=permits)

    async def acknowledge(self, *entries: int, consumer_id: int = 1, kind: int = 0, **fields: Any) -> None:
        """Acknowledge entries."""
        ids = [pb.MessageIdData(ledgerId=7, entryId=entry, **fields) for entry in entries]
        await self.ask("ACK", "ack", consumer_id=consumer_id, ack_type=kind, message_id=ids)

    async def redeliver(self, *entries: int, consumer_id: int = 1) -> None:
        """Ask for entries again; none: for all."""
        ids = [pb.MessageIdData(ledgerId=7, entryId=entry) for entry in entries]
        await self.tell(
            "REDELIVER_UNACKNOWLEDGED_MESSAGES",
            "redeliverUnacknowledgedMessages",
            consumer_id=consumer_id,
            message_ids=ids,
        )

    def entries(self, consumer_id: int = 1) -> list[int]:
        """Return the numbers of the entries that came, and forget them."""
        got = [entry for entry, _, _ in self.got[consumer_id]]
        self.got[consumer_id].clear()
        return got


class _Events(Handler):
    def __init__(self, raw: Raw, consumer_id: int) -> None:
        self._raw = raw
        self._id = consumer_id

    def on_message(self, head: MessageCommand, rest: bytes) -> None:
        payload = read_message(bytes(rest))[1]
        self._raw.got[self._id].append((head.entry, head.redelivery_count, payload))

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        self._raw.told.append((self._id, "closed", assigned_url))

    def on_active_changed(self, is_active: bool) -> None:
        self._raw.told.append((self._id, "active", is_active))

    def on_end_of_topic(self) -> None:
        self._raw.told.append((self._id, "end"))

    def on_topic_migrated(self, url: str | None) -> None:
        self._raw.told.append((self._id, "migrated", url))

    def on_connection_lost(self, error: Exception) -> None:
        self._raw.told.append((self._id, "lost", error))


@virtual_time
async def test_hands_out_as_permits_allow() -> None:
    """Permits limit the messages, a batch takes one for each of its messages; new messages come without a request."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in range(5):
        topic.publish(b"%d" % number)
    await raw.subscribe(permits=2)
    assert raw.entries() == [0, 1]
    await raw.flow(10)
    assert raw.entries() == [2, 3, 4]
    topic.publish_batch([b"a"] * 20)
    topic.publish(b"z")
    await asyncio.sleep(0.1)
    assert raw.entries() == [5]
    await raw.flow(14)
    assert raw.entries() == [6]
    await raw.connection.aclose()


@virtual_time
async def test_starts_where_it_is_told() -> None:
    """A subscription begins at the end, at the beginning, or after a message."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in range(4):
        topic.publish(b"%d" % number)
    await raw.subscribe(1, subscription="latest", initialPosition=0)
    await raw.subscribe(2, subscription="earliest")
    await raw.subscribe(3, subscription="after", start_message_id=pb.MessageIdData(ledgerId=7, entryId=1))
    assert [raw.entries(number) for number in (1, 2, 3)] == [[], [0, 1, 2, 3], [2, 3]]
    await raw.connection.aclose()


@virtual_time
async def test_redelivers() -> None:
    """What is asked for again comes again, and its count grows; what is acknowledged does not."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in range(4):
        topic.publish(b"%d" % number)
    await raw.subscribe()
    assert raw.entries() == [0, 1, 2, 3]
    await raw.acknowledge(1)
    await raw.redeliver(1, 2)
    assert raw.got[1] == [(2, 1, b"2")]
    await raw.redeliver(2)
    assert raw.got[1][1:] == [(2, 2, b"2")]
    raw.got[1].clear()
    await raw.redeliver()
    assert raw.entries() == [0, 2, 3]
    assert topic.subscriptions["s"].acked == {(7, 1)}
    await raw.connection.aclose()


@virtual_time
async def test_acknowledges_parts_of_batches() -> None:
    """A part of a batch is left out when the rest comes again; with the last part the whole is acknowledged."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    topic.publish_batch([b"a", b"b", b"c"])
    await raw.subscribe()
    await raw.acknowledge(0, ack_set=[0b011])
    subscription = topic.subscriptions["s"]
    assert subscription.unacked_indexes == {(7, 0): [0b011]}
    await raw.acknowledge(0, ack_set=[0b101])
    assert subscription.unacked_indexes == {(7, 0): [0b001]}
    await raw.acknowledge(0, ack_set=[0b110])
    assert (subscription.unacked_indexes, subscription.acked) == ({}, {(7, 0)})
    await raw.connection.aclose()


@virtual_time
async def test_acknowledges_up_to() -> None:
    """A cumulative acknowledgement takes all before it too."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in range(4):
        topic.publish(b"%d" % number)
    await raw.subscribe(kind=pb.CommandSubscribe.Exclusive)
    await raw.acknowledge(2, kind=1)
    assert topic.subscriptions["s"].acked == {(7, 0), (7, 1), (7, 2)}
    await raw.connection.aclose()


@virtual_time
async def test_what_a_consumer_had_is_handed_out_again() -> None:
    """When a consumer or its connection goes, others get what it had; what was acknowledged stays so."""
    broker = FakeBroker()
    topic, first, second = broker.topic(TOPIC), await Raw.open(broker), await Raw.open(broker)
    for number in range(3):
        topic.publish(b"%d" % number)
    await first.subscribe()
    await first.acknowledge(0)
    await second.subscribe()
    assert second.entries() == []
    first.connection.close()
    await asyncio.sleep(0.1)
    assert second.entries() == [1, 2]
    await second.ask("CLOSE_CONSUMER", "close_consumer", consumer_id=1)
    await second.subscribe(2)
    assert second.entries(2) == [1, 2]
    await second.connection.aclose()


@virtual_time
async def test_one_reader_on_exclusive_and_failover() -> None:
    """A second consumer is refused on Exclusive; on Failover it is notified that it is inactive, and takes over."""
    broker = FakeBroker()
    topic, first, second = broker.topic(TOPIC), await Raw.open(broker), await Raw.open(broker)
    topic.publish(b"0")
    await first.subscribe(kind=pb.CommandSubscribe.Exclusive, subscription="e")
    with pytest.raises(BrokerRefusedError, match="ConsumerBusy"):
        await second.subscribe(kind=pb.CommandSubscribe.Exclusive, subscription="e")
    await first.subscribe(2, kind=pb.CommandSubscribe.Failover, consumer_name="a")
    await second.subscribe(3, kind=pb.CommandSubscribe.Failover, consumer_name="b")
    assert (first.told, second.told) == ([(2, "active", True)], [(3, "active", False)])
    assert (first.entries(2), second.entries(3)) == ([0], [])
    first.connection.close()
    await asyncio.sleep(0.1)
    assert second.told == [(3, "active", False), (3, "active", True)]
    assert second.entries(3) == [0]
    await second.connection.aclose()


@virtual_time
async def test_keys_stay_with_a_consumer() -> None:
    """On Key_Shared all messages of a key go to the same consumer."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in (1, 2, 3):
        await raw.subscribe(number, kind=pb.CommandSubscribe.Key_Shared)
    for number in range(60):
        topic.publish(b"x", partition_key=f"k{number % 10}")
    await asyncio.sleep(0.1)
    keys = [{entry % 10 for entry in raw.entries(number)} for number in (1, 2, 3)]
    assert sorted(key for each in keys for key in each) == list(range(10))
    await raw.connection.aclose()


@virtual_time
async def test_moves_a_subscription() -> None:
    """A seek closes the consumers, and who subscribes again begins where it was moved to."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in range(4):
        topic.publish(b"%d" % number, publish_time=1_000 + number)
    await raw.subscribe()
    await raw.acknowledge(0, 1, 2, 3)
    await raw.ask("SEEK", "seek", consumer_id=1, message_id=pb.MessageIdData(ledgerId=7, entryId=2))
    assert raw.told == [(1, "closed", None)]
    raw.got[1].clear()
    await raw.subscribe(2)
    assert raw.entries(2) == [2, 3]
    await raw.ask("SEEK", "seek", consumer_id=2, message_publish_time=1_001)
    await raw.subscribe(3)
    assert raw.entries(3) == [1, 2, 3]
    last = await raw.ask("GET_LAST_MESSAGE_ID", "getLastMessageId", consumer_id=3)
    assert last.getLastMessageIdResponse.last_message_id.entryId == 3
    await raw.ask("UNSUBSCRIBE", "unsubscribe", consumer_id=3)
    assert topic.subscriptions == {}
    await raw.connection.aclose()


@virtual_time
async def test_stores_what_is_sent() -> None:
    """What a producer sends is stored, confirmed in order, and handed out; a known sequence id is stored once."""
    broker = FakeBroker()
    broker.deduplicates = True
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    await raw.subscribe()
    made = await raw.ask("PRODUCER", "producer", topic=TOPIC, producer_id=1, producer_name="p")
    assert made.producer_success.last_sequence_id == -1
    receipts: list[tuple[int, int]] = []

    class Receipts(_Events):
        def on_receipt(self, command: pb.CommandSendReceipt) -> None:
            receipts.append((command.sequence_id, command.message_id.entryId))

        def on_send_error(self, command: pb.CommandSendError) -> None:
            raise AssertionError(command)

    raw.connection.producers.add(1, Receipts(raw, 0))
    for sequence_id in (0, 1, 1, 2):
        sent = command("SEND")
        sent.send.producer_id, sent.send.sequence_id = 1, sequence_id
        raw.connection.send(encode_message(sent, metadata_of(sequence_id=sequence_id), b"%d" % sequence_id))
    await asyncio.sleep(0.1)
    assert receipts == [(0, 0), (1, 1), (1, 2**64 - 1), (2, 2)]
    assert [payload for _, _, payload in raw.got[1]] == [b"0", b"1", b"2"]
    assert len(topic.entries) == 3
    again = await raw.ask("PRODUCER", "producer", topic=TOPIC, producer_id=1, producer_name="p")
    assert again.producer_success.last_sequence_id == 2
    with pytest.raises(BrokerRefusedError, match="ProducerBusy"):
        await raw.ask("PRODUCER", "producer", topic=TOPIC, producer_id=2, producer_name="p")
    await raw.connection.aclose()


@virtual_time
async def test_moves_a_topic() -> None:
    """A topic that moves closes who uses it, and is served at its new place alone."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"0")
    raw = await Raw.open(broker)
    await raw.subscribe()
    broker.move(TOPIC, "pulsar://second:6650", tell_where=True)
    await asyncio.sleep(0.1)
    assert raw.told == [(1, "closed", "pulsar://second:6650")]
    with pytest.raises(BrokerRefusedError, match="ServiceNotReady"):
        await raw.subscribe()
    await raw.connection.aclose()


@virtual_time
async def test_a_pipe_keeps_order_and_time() -> None:
    """What is put into a pipe comes out in order, each after its latency, with one timer at a time."""
    loop = asyncio.get_running_loop()
    got: list[tuple[float, int]] = []
    pipe: Pipe[int] = Pipe(loop, 2.0, lambda item: got.append((loop.time(), item)))
    for item in range(3):
        pipe.put(item)
    await asyncio.sleep(1)
    pipe.put(3)
    await asyncio.sleep(5)
    assert got == [(2, 0), (2, 1), (2, 2), (3, 3)]


@virtual_time
async def test_nothing_is_carried_out_after_the_end() -> None:
    """What is on its way when the broker hangs up is lost; what was written before the client closes is carried out."""
    broker = FakeBroker(latency=0.1)
    raw = await Raw.open(broker)
    sent = command("CLOSE_CONSUMER")
    sent.close_consumer.consumer_id, sent.close_consumer.request_id = 1, 1
    raw.connection.send(encode_command(sent))
    broker.links[0].transport.hang_up()
    await asyncio.sleep(1)
    assert not raw.connection.is_open
    assert broker.commands("CLOSE_CONSUMER") == []
    raw = await Raw.open(broker)
    raw.connection.send(encode_command(sent))
    raw.connection.close()
    await asyncio.sleep(1)
    assert len(broker.commands("CLOSE_CONSUMER")) == 1
    assert broker.links == []
