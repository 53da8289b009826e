"""Where a reader begins, and its settings: the checks of a user's arguments, and the order of ids in a topic. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypedDict
from uuid import uuid4

from ..._check import INT64_MAX, check_name
from ..._delays import Delay, seek_position
from ...consumer.transport import refuse_unknown
from ...errors import InvalidArgumentError
from ...ids import MessageId
from .._consumer._non_durable_position import id_before
from .._consumer._selection import name_of
from .._consumer._subscribe_options import SubscribeOptions

Place = Literal["earliest", "latest"] | MessageId | datetime | int
"""A place in a topic: one of its ends, a message, or a publish time as a datetime or in epoch ms."""

EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(INT64_MAX, INT64_MAX)
_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}


def place_of(value: object, field: str = "position") -> MessageId | int:
    """Return a place as a message id (the ends have ids too) or a publish time in epoch ms.

    :raises InvalidArgumentError: names ``field``
    """
    if isinstance(value, str):
        if value not in _ENDS:
            raise InvalidArgumentError(field, value, "'earliest', 'latest', a MessageId, a datetime, or epoch ms")
        return _ENDS[value]
    return seek_position(value, field)


def start_of(value: object) -> MessageId | int | tuple[MessageId, ...]:
    """Return where a reader begins: one of both ends, a publish time in epoch ms, or the ids of messages.

    :raises InvalidArgumentError: names ``start``
    """
    if isinstance(value, Sequence) and not isinstance(value, str | MessageId):
        for index, each in enumerate(value):
            if not isinstance(each, MessageId) or each in {EARLIEST, LATEST}:
                raise InvalidArgumentError(f"start[{index}]", each, "the MessageId of a message")
        return tuple(value)
    place = place_of(value, "start")
    return place if isinstance(place, int) or place in {EARLIEST, LATEST} else (place,)


def starts_of(
    ids: Iterable[MessageId], members: Mapping[str, int], label: str, *, inclusive: bool
) -> dict[str, MessageId]:
    """Return the message before the first one, by the full names of topics and partitions.

    :param members: the topics and partitions that are read, with the numbers of partitions
    :raises InvalidArgumentError: an id is of none of them, or does not say of which
    """
    starts: dict[str, MessageId] = {}
    for each in ids:
        names = [name for name, partition in members.items() if _is_of(each, name, partition, only=len(members) == 1)]
        if len(names) != 1:
            wanted = f"an id with a topic or partition of {label}" if len(members) > 1 else f"an id of {label}"
            raise InvalidArgumentError("start", each, wanted)
        starts[names[0]] = id_before(each.first_chunk or each) if inclusive else each
    return starts


def _is_of(message_id: MessageId, name: str, partition: int, *, only: bool) -> bool:
    topic = message_id.topic
    if topic is not None:
        return name in {topic, name_of(topic, message_id.partition)}
    return message_id.partition == partition or (only and message_id.partition < 0)


def is_after(one: MessageId, other: MessageId) -> bool:
    """Return whether a message comes after another one of its topic or partition.

    An id without a batch index stands for the whole entry.
    """
    place, other_place = one[:2], other[:2]
    return place > other_place or (place == other_place and one[3] > other[3] >= 0)


class ReaderSettings(TypedDict, total=False):
    """The settings of a reader; most are fields of :class:`~pulsar_nack.wire.SubscribeOptions`."""

    reader_name: str | None
    subscription: str | None
    receiver_queue_size: int
    read_compacted: bool
    properties: Mapping[str, str]
    max_pending_chunked: int
    max_chunked_bytes: int
    chunk_timeout: Delay
    create_topic: bool


def reader_options(settings: Mapping[str, Any]) -> SubscribeOptions:
    """Return the checked options of a reader's subscription, with a unique name unless one is given.

    :raises InvalidArgumentError: names the first setting that is wrong or unknown
    """
    options: dict[str, Any] = {**settings}
    refuse_unknown(options.items(), tuple(ReaderSettings.__annotations__))
    subscription = options.pop("subscription", None)
    subscription = f"reader-{uuid4().hex[:10]}" if subscription is None else check_name("subscription", subscription)
    name = options.pop("reader_name", None)
    consumer_name = None if name is None else check_name("reader_name", name)
    return SubscribeOptions(
        subscription,
        type="exclusive",
        durable=False,
        batch_index_ack=False,
        consumer_name=consumer_name,
        **options,
    )
