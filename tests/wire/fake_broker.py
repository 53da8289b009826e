"""A scripted cluster in memory that speaks the protocol: for tests of the wire on virtual time.

It behaves like a cluster by default: accepts clients, answers lookups, keeps topics and subscriptions, sends messages
as permits allow, confirms sends and acknowledgements. Any answer can be scripted, once or for good::

    broker = FakeBroker()
    pool = Pool(broker.url, dial=broker.dial)
    broker.next("SUBSCRIBE", refuse("ConsumerBusy", "there is one"))   # for the next one of this kind
    broker.always("LOOKUP", silence)                                  # until broker.normally("LOOKUP")
    broker.next("SEND", later(2.0), cut)                              # as usual but 2 s late, then a lost connection

An answer is a function of the :class:`Call`: one of those below, or your own. ``broker.calls`` has all commands.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import FrameDecoder
from tests.wire.fake_link import FakeLink
from tests.wire.fake_topics import FakeConsumer, FakeSubscription, FakeTopic
from tests.wire.frames import command, frame, read_message

URL = "pulsar://broker:6650"
LATENCY = 0.001


class FakeBroker:
    """The cluster; ``url`` is its first node, which owns every topic until it is moved.

    :param latency: seconds from one end of a connection to the other
    """

    def __init__(self, url: str = URL, *, latency: float = LATENCY) -> None:
        self.url = url
        self.latency = latency
        self.nodes: dict[str, FakeNode] = {}
        self.topics: dict[str, FakeTopic] = {}
        self.partitions: dict[str, int] = {}
        """How many partitions a topic has; 0 for all others."""
        self.calls: list[Call] = []
        self.dialled: list[str] = []
        """The URLs that were dialled, in order."""
        self.max_message_bytes = 5 << 20
        self.deduplicates = False
        self.enforces_schemas = False
        """Whether topics with a schema refuse producers without one."""
        self.creates_topics = True
        """Whether subscribing or producing creates a missing topic."""
        self.tells_of_topics = False
        """Whether clients may watch the topics of a namespace."""
        self.tells_mark_delete = True
        """Whether an answer with the last message id has the mark-delete position."""
        self._once: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._always: dict[str, Answer] = {}
        self.node(url)

    def node(self, url: str) -> FakeNode:
        """Return a node of the cluster, created if it does not exist."""
        url = Address.parse(url).url
        if url not in self.nodes:
            self.nodes[url] = FakeNode(self, url)
        return self.nodes[url]

    def topic(self, name: str) -> FakeTopic:
        """Return a topic by its full name, created if it does not exist."""
        if name not in self.topics:
            self.topics[name] = FakeTopic(name, self.url)
            self._tell_of(name, new_topics=[name])
        return self.topics[name]

    def delete(self, name: str) -> None:
        """Delete a topic; its consumers and producers are closed."""
        topic = self.topics.pop(name)
        for link in self.links:
            link.close_users_of(topic)
        self._tell_of(name, deleted_topics=[name])

    def reset(self, name: str, subscription: str = "s", start: int = 0) -> None:
        """Reset a subscription as an administrator does: its consumers are closed."""
        moved = self.topics[name].subscriptions[subscription]
        self.close_consumers(moved)
        moved.rewind(start)

    def unload(self, name: str) -> None:
        """Close the consumers and producers of a topic."""
        for link in self.links:
            link.close_users_of(self.topics[name])

    def close_consumers(self, subscription: FakeSubscription) -> None:
        """Close all consumers of a subscription; their connections stay open."""
        for link in self.links:
            for consumer_id, (other, _) in list(link.consumers.items()):
                if other is subscription:
                    link.close_consumer(consumer_id)

    def _tell_of(self, name: str, **changes: list[str]) -> None:
        for link in self.links:
            for watcher_id, namespace in link.watchers.items():
                if f"://{namespace}/" in name:
                    update = command("WATCH_TOPIC_UPDATE")
                    changed = pb.CommandWatchTopicUpdate(watcher_id=watcher_id, topics_hash="", **changes)
                    update.watchTopicUpdate.CopyFrom(changed)
                    link.send(update)

    async def dial(self, protocol: Connection, address: Address) -> None:
        """Connect a client; pass it as ``dial``."""
        self.dialled.append(address.url)
        node = self.nodes.get(address.url)
        await asyncio.sleep(self.latency)
        if node is not None and node.hangs:
            await asyncio.get_running_loop().create_future()
        if node is None or node.is_down:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        node.accept(protocol)

    # --- scripts ---

    def next(self, kind: str, *answers: Answer) -> None:
        """Use these answers for the next commands of a kind, one each."""
        pb.BaseCommand.Type.Value(kind)
        self._once[kind].extend(answers)

    def always(self, kind: str, answer: Answer) -> None:
        """Use this answer for all commands of a kind, after those of :meth:`next`."""
        pb.BaseCommand.Type.Value(kind)
        self._always[kind] = answer

    def normally(self, kind: str) -> None:
        """Use the default answer for commands of a kind again."""
        self._always.pop(kind, None)
        self._once.pop(kind, None)

    def answer(self, call: Call) -> None:
        """Record a command and answer it."""
        self.calls.append(call)
        once = self._once[call.kind]
        answer = once.popleft() if once else self._always.get(call.kind, as_usual)
        answer(call)

    # --- commands and connections ---

    def commands(self, kind: str) -> list[Any]:
        """Return the bodies of the received commands of a kind."""
        return [call.body for call in self.calls if call.kind == kind]

    @property
    def links(self) -> list[Link]:
        """Return the connections that are open."""
        return [link for node in self.nodes.values() for link in node.links]

    def cut(self, error: Exception | None = None) -> None:
        """End all connections at once."""
        for link in self.links:
            link.transport.cut(error)

    def move(self, name: str, url: str, *, tell_where: bool = False) -> None:
        """Move a topic to another node: its consumers and producers are closed.

        Moving it to the same node is an unload.

        :param tell_where: whether the broker names the new node when it closes them
        """
        self.node(url)
        topic = self.topic(name)
        topic.load()
        topic.owner = Address.parse(url).url
        for link in self.links:
            link.close_users_of(topic, topic.owner if tell_where else None)


class FakeNode:
    """One broker of the cluster. ``is_down``: it refuses connections; ``hangs``: dialling never ends."""

    def __init__(self, broker: FakeBroker, url: str) -> None:
        self.broker = broker
        self.url = url
        self.is_down = self.hangs = False
        self.links: list[Link] = []

    def accept(self, protocol: Connection | asyncio.Protocol) -> None:
        """Accept a connection."""
        link = Link(self, protocol)
        self.links.append(link)
        protocol.connection_made(link.transport)

    def kill(self) -> None:
        """Go down: connections end, dialling is refused until :meth:`start`."""
        self.is_down = True
        for link in list(self.links):
            link.transport.cut()

    def start(self) -> None:
        """Listen again."""
        self.is_down = False


class Link:
    """One connection as the broker sees it."""

    def __init__(self, node: FakeNode, protocol: Connection | asyncio.Protocol) -> None:
        self.node = node
        self.broker = node.broker
        self.transport = FakeLink(protocol, latency=self.broker.latency, on_bytes=self._take, on_end=self._over)
        self.consumers: dict[int, tuple[FakeSubscription, FakeConsumer]] = {}
        self.producers: dict[int, tuple[FakeTopic, str]] = {}
        self.watchers: dict[int, str] = {}
        """The namespaces that are watched here."""
        self._decoder = FrameDecoder(1 << 30)

    def send(self, command: pb.BaseCommand, rest: bytes = b"") -> None:
        """Send the client a command, with headers and payload."""
        self.transport.deliver(frame(command, rest))

    def close_users_of(self, topic: FakeTopic, url: str | None = None) -> None:
        """Close the consumers and producers of a topic, as a broker does that unloads it."""
        for consumer_id, (subscription, _) in list(self.consumers.items()):
            if subscription.topic is topic:
                self.close_consumer(consumer_id, url)
        for producer_id, (of, _) in list(self.producers.items()):
            if of is topic:
                del self.producers[producer_id]
                closing = command("CLOSE_PRODUCER")
                closing.close_producer.producer_id, closing.close_producer.request_id = producer_id, 0
                if url is not None:
                    closing.close_producer.assignedBrokerServiceUrl = url
                self.send(closing)

    def close_consumer(self, consumer_id: int, url: str | None = None) -> None:
        """Close a consumer, and say where its topic moves to, if anywhere."""
        self.drop_consumer(consumer_id)
        closing = command("CLOSE_CONSUMER")
        closing.close_consumer.consumer_id, closing.close_consumer.request_id = consumer_id, 0
        if url is not None:
            closing.close_consumer.assignedBrokerServiceUrl = url
        self.send(closing)

    def drop_consumer(self, consumer_id: int) -> None:
        """Remove a consumer; its unacknowledged entries are redelivered."""
        subscription, consumer = self.consumers.pop(consumer_id, (None, None))
        if subscription is not None and consumer is not None:
            subscription.remove(consumer)

    def _take(self, data: bytes) -> None:
        for sent, headers_and_payload in self._decoder.feed(data):
            assert isinstance(sent, pb.BaseCommand)  # clients send no MESSAGE
            self.broker.answer(Call(self, sent, headers_and_payload, asyncio.get_running_loop().time()))

    def _over(self) -> None:
        if self in self.node.links:
            self.node.links.remove(self)
        for consumer_id in list(self.consumers):
            self.drop_consumer(consumer_id)
        self.producers.clear()
        self.watchers.clear()


@dataclass
class Call:
    """A received command: its connection, headers and payload, and time."""

    link: Link
    command: pb.BaseCommand
    rest: bytes
    at: float
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = pb.BaseCommand.Type.Name(self.command.type)

    @property
    def broker(self) -> FakeBroker:
        """Return the cluster."""
        return self.link.broker

    @property
    def body(self) -> Any:
        """Return the body of the command."""
        set_fields = [value for each, value in self.command.ListFields() if each.message_type is not None]
        return set_fields[0] if set_fields else None

    @property
    def request_id(self) -> int:
        """Return the request id; without one, the number that brokers put into errors."""
        return getattr(self.body, "request_id", 2**64 - 1)

    def reply(self, kind: str, **fields: Any) -> None:
        """Answer with a command of a kind; ``fields`` are its fields besides the request id."""
        answer = command(kind)
        body = getattr(answer, BODIES[kind])
        if "request_id" in body.DESCRIPTOR.fields_by_name:
            fields.setdefault("request_id", self.request_id)
        body.MergeFrom(type(body)(**fields))
        body.SetInParent()
        self.link.send(answer)


Answer = Callable[[Call], None]
BODIES = {
    "CONNECTED": "connected", "SUCCESS": "success", "ERROR": "error", "SEND_RECEIPT": "send_receipt",
    "SEND_ERROR": "send_error", "PRODUCER_SUCCESS": "producer_success", "PING": "ping", "PONG": "pong",
    "LOOKUP_RESPONSE": "lookupTopicResponse", "PARTITIONED_METADATA_RESPONSE": "partitionMetadataResponse",
    "GET_LAST_MESSAGE_ID_RESPONSE": "getLastMessageIdResponse", "ACK_RESPONSE": "ackResponse",
    "GET_TOPICS_OF_NAMESPACE_RESPONSE": "getTopicsOfNamespaceResponse", "AUTH_CHALLENGE": "authChallenge",
    "REACHED_END_OF_TOPIC": "reachedEndOfTopic", "ACTIVE_CONSUMER_CHANGE": "active_consumer_change",
    "WATCH_TOPIC_LIST_SUCCESS": "watchTopicListSuccess",
    "GET_SCHEMA_RESPONSE": "getSchemaResponse", "CONSUMER_STATS_RESPONSE": "consumerStatsResponse",
    "CLOSE_CONSUMER": "close_consumer", "CLOSE_PRODUCER": "close_producer", "TOPIC_MIGRATED": "topicMigrated",
}  # fmt: skip
"""Which part of a command is filled for each kind that a broker sends."""


# --- answers for scripts ---


def as_usual(call: Call) -> None:
    """Do what a broker does."""
    usual = USUAL.get(call.kind)
    if usual is not None:
        usual(call)


def silence(_call: Call) -> None:
    """Do nothing."""


def cut(call: Call) -> None:
    """End the connection; the command is not carried out."""
    call.link.transport.cut()


def carried_out_then_cut(call: Call) -> None:
    """Carry the command out, and end the connection before the answer arrives."""
    as_usual(call)
    call.link.transport.cut()


def refuse(code: str, text: str = "because a test wants it") -> Answer:
    """Say no."""
    number = pb.ServerError.Value(code)

    def answer(call: Call) -> None:
        failed = {"error": number, "message": text}
        if call.kind == "LOOKUP":
            call.reply("LOOKUP_RESPONSE", response=pb.CommandLookupTopicResponse.Failed, **failed)
        elif call.kind == "PARTITIONED_METADATA":
            call.reply("PARTITIONED_METADATA_RESPONSE", response=1, **failed)
        elif call.kind == "CONSUMER_STATS":
            call.reply("CONSUMER_STATS_RESPONSE", error_code=number, error_message=text)
        elif call.kind == "ACK":
            call.reply("ACK_RESPONSE", consumer_id=call.body.consumer_id, **failed)
        elif call.kind == "SEND":
            call.reply("SEND_ERROR", producer_id=call.body.producer_id, sequence_id=call.body.sequence_id, **failed)
        else:
            call.reply("ERROR", **failed)

    return answer


def later(seconds: float, answer: Answer = as_usual) -> Answer:
    """Answer after a delay, if the connection still exists."""

    def wait(call: Call) -> None:
        asyncio.get_running_loop().call_later(seconds, answer_if_there, call)

    def answer_if_there(call: Call) -> None:
        if not call.link.transport.is_over:
            answer(call)

    return wait


def in_turn(*answers: Answer) -> Answer:
    """Give several answers."""

    def answer(call: Call) -> None:
        for each in answers:
            each(call)

    return answer


def redirect(url: str, *, authoritative: bool = False, through_proxy: bool = False) -> Answer:
    """Redirect a lookup to another node."""
    return _located(pb.CommandLookupTopicResponse.Redirect, url, authoritative, through_proxy)


def found_at(url: str, *, through_proxy: bool = False) -> Answer:
    """Answer a lookup with a node."""
    return _located(pb.CommandLookupTopicResponse.Connect, url, authoritative=True, through_proxy=through_proxy)


def half(answer: Answer = as_usual, *, share: float = 0.5) -> Answer:
    """Deliver only the first part of an answer, then end the connection."""

    def cut_short(call: Call) -> None:
        transport, whole = call.link.transport, bytearray()
        deliver, transport.deliver = transport.deliver, whole.extend  # type: ignore[method-assign,assignment]
        try:
            answer(call)
        finally:
            transport.deliver = deliver  # type: ignore[method-assign]
        transport.deliver(bytes(whole[: max(int(len(whole) * share), 1)]))
        transport.hang_up()

    return cut_short


def raw(data: bytes) -> Answer:
    """Answer with these bytes."""
    return lambda call: call.link.transport.deliver(data)


def _located(response: int, url: str, authoritative: bool, through_proxy: bool) -> Answer:
    field = "brokerServiceUrlTls" if url.startswith("pulsar+ssl") else "brokerServiceUrl"

    def answer(call: Call) -> None:
        call.reply(
            "LOOKUP_RESPONSE",
            response=response,
            authoritative=authoritative,
            proxy_through_service_url=through_proxy,
            **{field: url},
        )

    return answer


# --- default answers ---


def _connect(call: Call) -> None:
    call.reply(
        "CONNECTED",
        server_version="fake",
        protocol_version=min(call.body.protocol_version, 21),
        max_message_size=call.broker.max_message_bytes,
        feature_flags=pb.FeatureFlags(
            supports_auth_refresh=True,
            supports_broker_entry_metadata=True,
            supports_topic_watchers=call.broker.tells_of_topics,
        ),
    )


def _lookup(call: Call) -> None:
    topic = call.broker.topics.get(call.body.topic)
    found_at(call.broker.url if topic is None else topic.owner)(call)


def _is_there(call: Call, *, create: bool = True) -> bool:
    """Return whether a topic exists or may be created; refuse the command otherwise, as brokers do."""
    name = call.body.topic
    is_there = name in call.broker.topics or (create and call.broker.creates_topics)
    if not is_there:
        refuse("TopicNotFound", f"Topic {name} does not exist")(call)
    return is_there


def _partitions(call: Call) -> None:
    if call.body.topic not in call.broker.partitions and not _is_there(call):
        return
    call.reply("PARTITIONED_METADATA_RESPONSE", response=0, partitions=call.broker.partitions.get(call.body.topic, 0))


def _topics(call: Call) -> None:
    domains = {0: ("persistent",), 1: ("non-persistent",), 2: ("persistent", "non-persistent")}[call.body.mode]
    beginnings = tuple(f"{domain}://{call.body.namespace}/" for domain in domains)
    call.reply(
        "GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=[name for name in call.broker.topics if name.startswith(beginnings)]
    )


def _watch(call: Call) -> None:
    body: pb.CommandWatchTopicList = call.body
    call.link.watchers[body.watcher_id] = body.namespace
    names = [name for name in call.broker.topics if f"://{body.namespace}/" in name]
    call.reply("WATCH_TOPIC_LIST_SUCCESS", watcher_id=body.watcher_id, topic=names, topics_hash="")


def _close_watch(call: Call) -> None:
    call.link.watchers.pop(call.body.watcher_id, None)
    call.reply("SUCCESS")


def _subscribe(call: Call) -> None:
    body: pb.CommandSubscribe = call.body
    if not _is_there(call, create=body.force_topic_creation):
        return
    topic = call.broker.topic(body.topic)
    if topic.owner != call.link.node.url:
        refuse("ServiceNotReady", f"{body.topic} is not served here")(call)
        return
    subscription = topic.subscriptions.get(body.subscription)
    if subscription is not None and not subscription.consumers and not body.durable and not subscription.is_moved:
        subscription = None  # it was removed with its last consumer
    if subscription is None or (not subscription.consumers and subscription.kind != body.subType):
        start = 0 if body.initialPosition == body.Earliest else len(topic.entries)
        if body.HasField("start_message_id"):
            before = body.start_message_id
            first = before.entryId + (before.batch_index < 0)  # a batch is sent again as a whole
            is_earliest = before.ledgerId == 2**64 - 1  # -1
            start = 0 if is_earliest else topic.index_of((before.ledgerId, first % 2**64))
        old, subscription = subscription, FakeSubscription(topic, body.subType, start)
        if old is not None:
            subscription.rewind(0)
            subscription.acked, subscription.unacked_indexes = old.acked, old.unacked_indexes
        topic.subscriptions[body.subscription] = subscription
    if subscription.consumers and (subscription.kind != body.subType or subscription.kind == body.Exclusive):
        refuse("ConsumerBusy", "Exclusive consumer is already connected")(call)
        return
    subscription.epoch = max(subscription.epoch, body.consumer_epoch)
    consumer = FakeConsumer(body.consumer_id, body.consumer_name or f"c{len(call.broker.calls)}", body, call.link.send)
    call.link.consumers[body.consumer_id] = (subscription, consumer)
    call.reply("SUCCESS")
    subscription.add(consumer)
    if topic.is_terminated:
        call.reply("REACHED_END_OF_TOPIC", consumer_id=body.consumer_id)


def _flow(call: Call) -> None:
    subscription, consumer = call.link.consumers.get(call.body.consumer_id, (None, None))
    if subscription is not None and consumer is not None:
        consumer.permits += call.body.messagePermits
        subscription.dispatch()


def _ack(call: Call) -> None:
    body: pb.CommandAck = call.body
    subscription, _ = call.link.consumers.get(body.consumer_id, (None, None))
    if subscription is not None:
        subscription.acknowledge(body.message_id, is_cumulative=body.ack_type == body.Cumulative)
    if body.HasField("request_id"):
        call.reply("ACK_RESPONSE", consumer_id=body.consumer_id)


def _redeliver(call: Call) -> None:
    body: pb.CommandRedeliverUnacknowledgedMessages = call.body
    subscription, consumer = call.link.consumers.get(body.consumer_id, (None, None))
    if subscription is not None and consumer is not None:
        if body.HasField("consumer_epoch"):
            subscription.epoch = max(subscription.epoch, body.consumer_epoch)
        places = [(each.ledgerId, each.entryId) for each in body.message_ids]
        subscription.redeliver(consumer, places or None)


def _seek(call: Call) -> None:
    body: pb.CommandSeek = call.body
    subscription, _ = call.link.consumers.get(body.consumer_id, (None, None))
    if subscription is None:
        refuse("ConsumerNotFound")(call)
        return
    topic = subscription.topic
    start = 0
    if body.HasField("message_id"):
        wanted = body.message_id
        is_end = wanted.ledgerId == wanted.entryId == 2**63 - 1
        start = len(topic.entries) if is_end else topic.index_of((wanted.ledgerId, wanted.entryId))
        if wanted.ledgerId == wanted.entryId == 2**64 - 1:
            start = 0
    else:
        times = [read_message(entry.rest)[0].publish_time for entry in topic.entries]
        start = sum(time < body.message_publish_time for time in times)
    call.broker.close_consumers(subscription)
    subscription.rewind(start)
    subscription.is_moved = True
    call.reply("SUCCESS")


def _statistics(call: Call) -> None:
    subscription, consumer = call.link.consumers.get(call.body.consumer_id, (None, None))
    if subscription is None or consumer is None:
        refuse("ConsumerNotFound")(call)
        return
    call.reply(
        "CONSUMER_STATS_RESPONSE",
        availablePermits=max(consumer.permits, 0),
        unackedMessages=len(consumer.pending),
        blockedConsumerOnUnackedMsgs=subscription.is_blocked(consumer),
        msgBacklog=sum(entry.place not in subscription.acked for entry in subscription.topic.entries),
    )


def _last_id(call: Call) -> None:
    subscription, _ = call.link.consumers.get(call.body.consumer_id, (None, None))
    if subscription is None:
        refuse("ConsumerNotFound")(call)
        return
    entries = subscription.topic.entries
    last = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    if entries:
        last = pb.MessageIdData(ledgerId=entries[-1].ledger, entryId=entries[-1].entry)
        last.partition = subscription.topic.partition
        if entries[-1].messages > 1:
            last.batch_index = entries[-1].messages - 1
    mark: dict[str, Any] = {}
    if call.broker.tells_mark_delete:
        ledger, entry = subscription.mark_delete_position
        mark["consumer_mark_delete_position"] = pb.MessageIdData(ledgerId=ledger, entryId=entry % 2**64)
    call.reply("GET_LAST_MESSAGE_ID_RESPONSE", last_message_id=last, **mark)


def _unsubscribe(call: Call) -> None:
    subscription, _ = call.link.consumers.get(call.body.consumer_id, (None, None))
    if subscription is not None:
        call.link.drop_consumer(call.body.consumer_id)
        names = [name for name, each in subscription.topic.subscriptions.items() if each is subscription]
        for name in names:
            del subscription.topic.subscriptions[name]
    call.reply("SUCCESS")


def _close_consumer(call: Call) -> None:
    call.link.drop_consumer(call.body.consumer_id)
    call.reply("SUCCESS")


def _producer(call: Call) -> None:
    body: pb.CommandProducer = call.body
    if not _is_there(call):
        return
    topic = call.broker.topic(body.topic)
    if topic.owner != call.link.node.url:
        refuse("ServiceNotReady", f"{body.topic} is not served here")(call)
        return
    if topic.is_terminated:
        refuse("TopicTerminatedError", "the topic is terminated")(call)
        return
    name = body.producer_name or f"p{len(call.broker.calls)}"
    taken = [
        link
        for link in call.broker.links
        for number, (of, other) in link.producers.items()
        if of is topic and other == name and (link, number) != (call.link, body.producer_id)
    ]
    if taken:
        refuse("ProducerBusy", f"producer {name} is connected already")(call)
        return
    version = None
    if body.HasField("schema"):
        schema = body.schema.SerializeToString()
        if schema not in topic.schemas:
            topic.schemas.append(schema)
        version = topic.schemas.index(schema).to_bytes(8, "big")
    elif topic.schemas and call.broker.enforces_schemas:
        refuse("IncompatibleSchema", "producers need a schema")(call)
        return
    call.link.producers[body.producer_id] = (topic, name)
    last = topic.last_sequence_ids.get(name, -1) if call.broker.deduplicates else -1
    call.reply("PRODUCER_SUCCESS", producer_name=name, last_sequence_id=last, schema_version=version)


def _schema(call: Call) -> None:
    body: pb.CommandGetSchema = call.body
    topic = call.broker.topics.get(body.topic)
    known = [] if topic is None else topic.schemas
    number = int.from_bytes(body.schema_version, "big") if body.HasField("schema_version") else len(known) - 1
    if 0 <= number < len(known):
        call.reply("GET_SCHEMA_RESPONSE", schema=pb.Schema.FromString(known[number]))
    else:
        code = pb.ServerError.Value("TopicNotFound")
        call.reply("GET_SCHEMA_RESPONSE", error_code=code, error_message="no schema")


def _send(call: Call) -> None:
    body: pb.CommandSend = call.body
    topic, name = call.link.producers.get(body.producer_id, (None, ""))
    if topic is None:
        cut(call)  # as brokers do with a producer that they do not know
        return
    metadata, _ = read_message(call.rest)
    highest = max(body.highest_sequence_id, body.sequence_id)
    is_first_part = body.is_chunk and metadata.chunk_id < metadata.num_chunks_from_msg - 1
    last = topic.last_sequence_ids.get(name, -1)
    is_known = call.broker.deduplicates and not is_first_part and body.sequence_id <= last
    place = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    if not is_known:
        entry = topic.append(call.rest, messages=body.num_messages, key=metadata.partition_key)
        if not is_first_part:
            topic.last_sequence_ids[name] = max(highest, last)
        place = pb.MessageIdData(ledgerId=entry.ledger, entryId=entry.entry)
        place.partition = topic.partition
    call.reply(
        "SEND_RECEIPT",
        producer_id=body.producer_id,
        sequence_id=body.sequence_id,
        highest_sequence_id=body.highest_sequence_id,
        message_id=place,
    )


def _close_producer(call: Call) -> None:
    call.link.producers.pop(call.body.producer_id, None)
    call.reply("SUCCESS")


def _ping(call: Call) -> None:
    call.reply("PONG")


USUAL: dict[str, Answer] = {
    "CONNECT": _connect,
    "LOOKUP": _lookup,
    "PARTITIONED_METADATA": _partitions,
    "GET_TOPICS_OF_NAMESPACE": _topics,
    "WATCH_TOPIC_LIST": _watch,
    "WATCH_TOPIC_LIST_CLOSE": _close_watch,
    "SUBSCRIBE": _subscribe,
    "FLOW": _flow,
    "ACK": _ack,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": _redeliver,
    "SEEK": _seek,
    "CONSUMER_STATS": _statistics,
    "GET_LAST_MESSAGE_ID": _last_id,
    "UNSUBSCRIBE": _unsubscribe,
    "CLOSE_CONSUMER": _close_consumer,
    "PRODUCER": _producer,
    "SEND": _send,
    "CLOSE_PRODUCER": _close_producer,
    "GET_SCHEMA": _schema,
    "PING": _ping,
}
"""The default answer for each kind; other kinds get none."""
