"""What the broker is told when a topic is subscribed to, and how its messages are fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ..._check import check_flag
from ..._delays import Delay, delay_ms
from ...errors import InvalidArgumentError
from ...ids import MessageId

SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]
InitialPosition = Literal["latest", "earliest"]

TYPES: Final = ("exclusive", "shared", "failover", "key_shared")
_POSITIONS: Final = ("latest", "earliest")
_HASHES: Final = 65_536
_INT32_MAX: Final = 2**31 - 1
_MOST_QUEUED: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class KeyShared:
    """How keys are shared out among the consumers of a Key_Shared subscription.

    :param ranges: the hashes that this consumer takes, (first, last), of 0 to 65 535; none: the broker splits them
    :param allow_out_of_order: keys may move to a new consumer before the old one has acknowledged what it got
    :raises InvalidArgumentError: ranges that are none, or that overlap
    """

    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False

    def __post_init__(self) -> None:
        end = -1
        for first, last in sorted(_as_ranges(self.ranges)):
            if not end < first <= last < _HASHES:
                wanted = f"ranges of hashes from 0 to {_HASHES - 1} that do not overlap"
                raise InvalidArgumentError("ranges", self.ranges, wanted)
            end = last
        check_flag("allow_out_of_order", self.allow_out_of_order)


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The options of one subscription.

    :param subscription: its name
    :param type: ``"shared"``, ``"key_shared"``, ``"failover"`` or ``"exclusive"``
    :param consumer_name: how the broker shows this consumer; on Failover, names decide who is active on a partition
    :param initial_position: where a new subscription begins: at the ``"latest"`` message or the ``"earliest"``
    :param priority_level: consumers of a lower level get messages first
    :param properties: of this consumer, as the broker shows them
    :param subscription_properties: of the subscription, when this makes it
    :param key_shared: how keys are shared out; None: the broker splits them
    :param receiver_queue_size: most messages that are fetched ahead; 0: none is, so that a consumer holds nothing but
        what it works on. Of one topic without partitions
    :param batch_index_ack: tell the broker of single messages of a batch that are acknowledged; else an entry is
        acknowledged once all its messages are
    :param ack_group_ms: most that an acknowledgement waits for others to go with it
    :param max_pending_chunked: most chunked messages of which some parts are here and others are not
    :param max_chunked_bytes: most memory for their parts
    :param chunk_timeout: how long their other parts may take; then those here are given back to the broker
    :param read_compacted: only the last message of each key, from a compacted topic
    :param durable: the broker keeps the subscription; if not it begins at ``start_message_id`` each time
    :param replicate_subscription_state: to other clusters
    :param start_message_id: the message before the first one, where the subscription is not durable
    :param create_topic: let the broker make the topic if it is not there, where it may
    :raises InvalidArgumentError: names the option
    """

    subscription: str
    type: SubscriptionType = "shared"
    consumer_name: str | None = None
    initial_position: InitialPosition = "latest"
    priority_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    key_shared: KeyShared | None = None
    receiver_queue_size: int = 1_000
    batch_index_ack: bool = True
    ack_group_ms: int = 2
    max_pending_chunked: int = 10
    max_chunked_bytes: int = 64 << 20
    chunk_timeout: Delay = 60.0
    read_compacted: bool = False
    durable: bool = True
    replicate_subscription_state: bool = False
    start_message_id: MessageId | None = None
    create_topic: bool = True

    def __post_init__(self) -> None:
        _check_name("subscription", self.subscription)
        if self.consumer_name is not None:
            _check_name("consumer_name", self.consumer_name)
        _check_one_of("type", self.type, TYPES)
        _check_one_of("initial_position", self.initial_position, _POSITIONS)
        _check_whole("priority_level", self.priority_level, 0, _INT32_MAX)
        check_strings("properties", self.properties)
        check_strings("subscription_properties", self.subscription_properties)
        _check_whole("receiver_queue_size", self.receiver_queue_size, 0, _MOST_QUEUED)
        _check_whole("ack_group_ms", self.ack_group_ms, 0, 10_000)
        _check_whole("max_pending_chunked", self.max_pending_chunked, 1, 100_000)
        _check_whole("max_chunked_bytes", self.max_chunked_bytes, 1, 2**40)
        if not delay_ms(self.chunk_timeout, "chunk_timeout"):
            raise InvalidArgumentError("chunk_timeout", self.chunk_timeout, "more than 0")
        for name in ("batch_index_ack", "read_compacted", "durable", "replicate_subscription_state", "create_topic"):
            check_flag(name, getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that do not go with one another."""
        if self.key_shared is not None and not isinstance(self.key_shared, KeyShared):
            raise InvalidArgumentError("key_shared", self.key_shared, "a KeyShared or None")
        if self.key_shared is not None and self.type != "key_shared":
            raise InvalidArgumentError("key_shared", self.key_shared, "None, as the type is not 'key_shared'")
        if self.start_message_id is not None and not isinstance(self.start_message_id, MessageId):
            raise InvalidArgumentError("start_message_id", self.start_message_id, "a MessageId or None")
        if self.start_message_id is not None and self.durable:
            raise InvalidArgumentError("start_message_id", self.start_message_id, "None on a durable subscription")
        if self.read_compacted and not self.only_one_gets_messages:
            raise InvalidArgumentError("read_compacted", self.read_compacted, "False, but on 'exclusive' or 'failover'")

    @property
    def only_one_gets_messages(self) -> bool:
        """Return whether one consumer gets all messages, in order: Exclusive and Failover."""
        return self.type in {"exclusive", "failover"}


def _as_ranges(value: object) -> tuple[tuple[int, int], ...]:
    wanted = "a tuple of pairs of whole numbers"
    if not isinstance(value, tuple):
        raise InvalidArgumentError("ranges", value, wanted)
    for pair in value:
        if not isinstance(pair, tuple) or len(pair) != 2 or any(type(end) is not int for end in pair):
            raise InvalidArgumentError("ranges", value, wanted)
    return value


def is_text(value: object) -> bool:
    """Return whether something is text that can be sent: with no half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _check_name(name: str, value: object) -> None:
    if not is_text(value) or not value:
        raise InvalidArgumentError(name, value, "a name")


def _check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(name, value, f"one of {', '.join(known)}")


def _check_whole(name: str, value: object, lowest: int, highest: int) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise InvalidArgumentError(name, value, f"an integer from {lowest} to {highest}")


def check_strings(name: str, value: object) -> None:
    """Check that this is a mapping of texts that can be sent."""
    if not isinstance(value, Mapping) or not all(is_text(text) for pair in value.items() for text in pair):
        raise InvalidArgumentError(name, value, "a mapping from str to str")
