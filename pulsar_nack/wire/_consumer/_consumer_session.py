"""The session of a consumer with the broker, and the commands that it sends; the frequent ones ready to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ...ids import MessageId
from .._connection._connection import Connection
from .._connection._session import Session
from .._protocol import _pulsar_pb2 as pb
from .._protocol._batches import all_of, words_of
from .._protocol._frames import MessageCommand, encode_command
from ._ack_groups import AckGroup, Answered
from ._subscribe_options import SubscribeOptions

_FIRST_WITH_RECEIPTS: Final = 17
"""The protocol version from which on the broker answers acknowledgements."""
_TYPES: Final = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}
_LARGEST: Final = 2**64 - 1


class ConsumerSession(Session):
    """The session of a consumer.

    :param on_message: takes the entries that arrive
    :param on_closed: called with the session and the error if the broker or a lost connection ends it
    :param on_active_changed: called with the session when this consumer of a Failover subscription becomes active or
        inactive
    :param on_topic_migrated: called with the URL when the topic moves to another cluster
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        on_message: Callable[[MessageCommand, bytes], None],
        on_closed: Callable[[Session, Exception], None],
        on_active_changed: Callable[[ConsumerSession, bool], None],
        on_topic_migrated: Callable[[str | None], None],
    ) -> None:
        super().__init__(
            connection, connection.consumers, topic, what="consumer", close=close_command, on_closed=on_closed
        )
        self.is_active: bool | None = None
        """Whether this consumer of a Failover subscription gets the messages; None: the broker did not say."""
        self.has_ended = False
        """Whether the topic was terminated and all its messages were delivered."""
        self.reports_mark_delete = True
        """Whether the mark-delete position comes with the id of the last message, as far as known."""
        self.on_message = on_message  # called directly: the hot path
        self._on_active_changed = on_active_changed
        self.on_topic_migrated = on_topic_migrated
        self._has_receipts = connection.connected.protocol_version >= _FIRST_WITH_RECEIPTS

    # --- commands; on a lost connection those without an answer do nothing --------------------------------------------

    def permit(self, messages: int) -> None:
        """Let the broker send this many more messages."""
        if not self.is_closed:  # nor while it is being closed
            self.send(flow_command(self.id, messages))

    def redeliver(self, positions: Sequence[tuple[int, int]]) -> None:
        """Request the redelivery of these entries."""
        self.send(redeliver_command(self.id, positions))

    def rewind(self, epoch: int) -> None:
        """Request all unacknowledged messages again."""
        self.send(rewind_command(self.id, epoch))

    def send_acks(self, group: AckGroup, answered: Answered) -> None:
        """Send acknowledgements; ``answered`` is called with the receipt, or soon if this broker gives none.

        :raises ConnectionLostError: the connection is closed
        """
        connection = self.connection
        if not self._has_receipts:
            connection.send(ack_command(self.id, group, None))
            asyncio.get_running_loop().call_soon(answered, None, None)
            return
        request_id = connection.begin_request("ACK", answered)
        try:
            connection.send(ack_command(self.id, group, request_id))
        except BaseException:
            connection.discard_request(request_id)
            raise

    # --- events of the connection -------------------------------------------------------------------------------------

    def on_active_changed(self, is_active: bool) -> None:
        """Note whether this consumer is active, and pass the event to the owner."""
        self.is_active = is_active
        self._on_active_changed(self, is_active)

    def on_end_of_topic(self) -> None:
        """Note that the topic was terminated and all its messages were delivered."""
        self.has_ended = True


# --- commands ---------------------------------------------------------------------------------------------------------


def subscribe_command(
    topic: str, consumer_id: int, request_id: int, options: SubscribeOptions, *, start: MessageId | None, epoch: int
) -> pb.BaseCommand:
    """Return the command that subscribes to a topic.

    :param start: the message before the first, where the subscription is not durable
    :param epoch: on Exclusive and Failover, how often the consumer asked for all messages again
    """
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    what = command.subscribe
    what.topic = topic
    what.subscription = options.subscription
    what.subType = _TYPES[options.type]
    what.consumer_id = consumer_id
    what.request_id = request_id
    what.priority_level = options.priority_level
    what.durable = options.durable
    what.read_compacted = options.read_compacted
    is_latest = options.initial_position == "latest"
    what.initialPosition = pb.CommandSubscribe.Latest if is_latest else pb.CommandSubscribe.Earliest
    what.replicate_subscription_state = options.replicate_subscription_state
    what.force_topic_creation = options.create_topic
    if options.consumer_name is not None:
        what.consumer_name = options.consumer_name
    if start is not None:
        _fill_id(what.start_message_id, start)
    if options.only_one_gets_messages:
        what.consumer_epoch = epoch
    _fill_pairs(what.metadata, options.properties)
    _fill_pairs(what.subscription_properties, options.subscription_properties)
    if options.type == "key_shared":
        _fill_key_shared(what.keySharedMeta, options)
    return command


def flow_command(consumer_id: int, permits: int) -> bytes:
    """Return the command that lets the broker send this many more messages."""
    body = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=body))


def ack_command(consumer_id: int, group: AckGroup, request_id: int | None) -> bytes:
    """Return the command that acknowledges a group; without ``request_id`` the broker sends no receipt."""
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    ack = command.ack
    ack.consumer_id = consumer_id
    ack.ack_type = pb.CommandAck.Cumulative if group.is_cumulative else pb.CommandAck.Individual
    add = ack.message_id.add
    for (ledger, entry), remaining in group.entries.items():
        data = add()  # without arguments, which would be looked up by name: often
        data.ledgerId = ledger
        data.entryId = entry & _LARGEST
        if remaining:
            data.ack_set.extend(words_of(remaining))
    if request_id is not None:
        ack.request_id = request_id
    return encode_command(command)


def redeliver_command(consumer_id: int, positions: Sequence[tuple[int, int]]) -> bytes:
    """Return the command that requests the redelivery of these entries."""
    command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
    add = command.redeliverUnacknowledgedMessages.message_ids.add
    for ledger, entry in positions:
        add(ledgerId=ledger, entryId=entry)
    return encode_command(command)


def rewind_command(consumer_id: int, epoch: int) -> bytes:
    """Return the command that requests all unacknowledged messages again, marked with the epoch."""
    body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, consumer_epoch=epoch)
    kind = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    return encode_command(pb.BaseCommand(type=kind, redeliverUnacknowledgedMessages=body))


def seek_command(consumer_id: int, request_id: int, position: MessageId | int) -> pb.BaseCommand:
    """Return the command that moves the subscription to a message, or to a publish time in epoch ms."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEEK)
    command.seek.consumer_id = consumer_id
    command.seek.request_id = request_id
    if isinstance(position, MessageId):
        _fill_id(command.seek.message_id, position)
        if 0 < position.batch_index < position.batch_size:  # those before it in its batch stay acknowledged
            left = all_of(position.batch_size) & ~all_of(position.batch_index)
            command.seek.message_id.ack_set.extend(words_of(left))
    else:
        command.seek.message_publish_time = position
    return command


def unsubscribe_command(consumer_id: int, request_id: int, *, force: bool = False) -> pb.BaseCommand:
    """Return the command that deletes the subscription."""
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    if force:  # else it is left out, as brokers that do not know it expect
        body.force = True
    return pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE, unsubscribe=body)


def close_command(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Return the command that closes the consumer."""
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=body)


def last_message_id_command(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Return the command that asks for the id of the topic's last message."""
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=body)


def statistics_command(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Return the command that asks for the broker's statistics of the consumer."""
    body = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS, consumerStats=body)


def _fill_id(data: pb.MessageIdData, message_id: MessageId) -> None:
    """Fill in an id; -1, the earliest position, is the largest number of the protocol."""
    data.ledgerId = message_id.ledger & _LARGEST
    data.entryId = message_id.entry & _LARGEST
    if message_id.partition >= 0:
        data.partition = message_id.partition
    if message_id.batch_index >= 0:
        data.batch_index = message_id.batch_index


def _fill_pairs(pairs: Iterable[pb.KeyValue], values: Mapping[str, str]) -> None:
    for key, value in values.items():
        pairs.add(key=key, value=value)  # type: ignore[attr-defined]


def _fill_key_shared(meta: pb.KeySharedMeta, options: SubscribeOptions) -> None:
    policy = options.key_shared
    if policy is None or not policy.ranges:
        meta.keySharedMode = pb.AUTO_SPLIT
    else:
        meta.keySharedMode = pb.STICKY
        for first, last in policy.ranges:
            meta.hashRanges.add(start=first, end=last)
    if policy is not None:
        meta.allowOutOfOrderDelivery = policy.allow_out_of_order
