"""The commands that a consumer sends; the frequent ones as bytes that are ready to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...ids import MessageId
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import encode_command
from ._ack_groups import AckGroup
from ._ack_sets import all_of, words_of
from ._subscribe_options import SubscribeOptions

_TYPES: Final = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}
_LARGEST: Final = 2**64 - 1


def subscribe(
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


def flow(consumer_id: int, permits: int) -> bytes:
    """Return the command that lets the broker send this many more messages."""
    body = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=body))


def acknowledge(consumer_id: int, group: AckGroup, request_id: int | None) -> bytes:
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


def redeliver(consumer_id: int, positions: Sequence[tuple[int, int]]) -> bytes:
    """Return the command that requests the redelivery of these entries."""
    command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
    add = command.redeliverUnacknowledgedMessages.message_ids.add
    for ledger, entry in positions:
        add(ledgerId=ledger, entryId=entry)
    return encode_command(command)


def rewind(consumer_id: int, epoch: int) -> bytes:
    """Return the command that requests all unacknowledged messages again, marked with the epoch."""
    body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, consumer_epoch=epoch)
    kind = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    return encode_command(pb.BaseCommand(type=kind, redeliverUnacknowledgedMessages=body))


def seek(consumer_id: int, request_id: int, position: MessageId | int) -> pb.BaseCommand:
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


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> pb.BaseCommand:
    """Return the command that deletes the subscription."""
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    if force:  # else it is left out, as brokers that do not know it expect
        body.force = True
    return pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE, unsubscribe=body)


def close(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Return the command that closes the consumer."""
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=body)


def last_message_id(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Return the command that asks for the id of the topic's last message."""
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=body)


def statistics(consumer_id: int, request_id: int) -> pb.BaseCommand:
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
