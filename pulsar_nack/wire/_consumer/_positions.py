"""Positions in a topic: those that users name, and that of a non-durable subscription. Pure.

The broker forgets a non-durable subscription when its connection ends. The next session begins after the last message
that was taken, which costs nothing: messages in flight stay with the application. A redelivery request may name a
message before that beginning, where no request can reach it. Then the next session begins with the first such message,
and the broker also sends what was taken after it. Of those messages, the acknowledged ones are known here and not
delivered; the consumer drops the others as duplicates.

Only entries count: the consumer knows which members of a batch are acknowledged until all of them are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from ..._check import INT64_MAX
from ..._delays import seek_position
from ...errors import InvalidArgumentError
from ...ids import MessageId, _is_message_id
from ...index import PositionRanges
from ._topic_discovery import name_of

Place = tuple[int, int]
"""A ledger and an entry id."""
TopicPosition = Literal["earliest", "latest"] | MessageId | datetime | int
"""A position in a topic: one of its ends, a message, or a publish time as a datetime or in epoch ms."""

EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(INT64_MAX, INT64_MAX)
_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}


class NonDurablePosition:
    """Where the next session of one topic or partition begins.

    :param start: the message before the first one; None: the broker decides
    :param is_exact: the broker begins there, and not at a place that only it knows
    """

    def __init__(self, start: MessageId | None, *, is_exact: bool = True) -> None:
        self.move(start, is_exact=is_exact)

    def move(self, start: MessageId | None, *, is_exact: bool = True) -> None:
        """Begin after this message, as if nothing had been taken: at first, and after a seek."""
        self.start = start
        """The message before the first one; None: the broker decides."""
        self.last_arrived: Place | None = None
        """The last entry that arrived, None if what has arrived and was not taken is to come again."""
        self._is_exact = is_exact
        self._last: MessageId | None = None
        self._unacked = PositionRanges()
        self._requested: set[Place] = set()
        self._acked = PositionRanges()
        self._acked_through: Place | None = None
        self._begun: Place | None = None
        self._is_rewound = False

    @property
    def is_known(self) -> bool:
        """Return whether the next session can begin where this one is, should the broker forget the subscription."""
        return self._is_exact or self._last is not None

    def begin(self) -> MessageId | None:
        """Return the message before the first one of the session that begins; None: the broker decides."""
        start = self.start if self._last is None else self._last
        lowest = min(self._requested, default=None)
        self._is_rewound = lowest is not None and start is not None and lowest <= (start.ledger, start.entry)
        if self._is_rewound and lowest is not None:
            start = MessageId(lowest[0], lowest[1] - 1)
        self._begun = None if start is None else (start.ledger, start.entry)
        self._forget_acked()
        return start

    def arrived(self, place: Place) -> bool:
        """Note an entry that arrives; return whether it is acknowledged already."""
        if self._begun is None:  # what is not taken has to come again from the next session
            self._begun = (place[0], place[1] - 1)
            self.start = MessageId(*self._begun)
        self.last_arrived = place
        return place in self._acked or (self._acked_through is not None and place <= self._acked_through)

    def taken(self, message_id: MessageId) -> None:
        """Note that a message was received."""
        if self._last is None or message_id > self._last:
            self._last = message_id
        for ledger, entry in message_id.parts if message_id.is_chunked else (message_id[:2],):
            self._unacked.add(ledger, entry)
            self._requested.discard((ledger, entry))

    def acked(self, places: Iterable[Place]) -> None:
        """Note entries of which every message is acknowledged."""
        for ledger, entry in places:
            self._requested.discard((ledger, entry))
            if self._unacked.discard(ledger, entry):
                self._acked.add(ledger, entry)
        self._forget_acked()

    def acked_through(self, place: Place) -> None:
        """Note that everything up to an entry is acknowledged."""
        self._acked_through = place if self._acked_through is None else max(self._acked_through, place)
        self._requested = {each for each in self._requested if each > place}
        self._unacked.trim(*place)

    def request(self, places: Iterable[Place]) -> bool:
        """Note which taken entries are requested; return whether some of them can only come in another session."""
        self._requested.update(place for place in places if place in self._unacked)
        return self.is_behind

    @property
    def is_behind(self) -> bool:
        """Return whether a requested entry comes before the present session's first message."""
        begun = self._begun
        return begun is not None and any(place <= begun for place in self._requested)

    @property
    def requested(self) -> Collection[Place]:
        """Return the entries that have to come again."""
        return self._requested

    def expect(self, places: Iterable[Place]) -> None:
        """Note entries that have to come in the next session though they were not taken."""
        self._requested.update(places)

    def _forget_acked(self) -> None:
        """Forget acknowledged entries that the broker has no reason to send again, now or in the next session."""
        if not self._unacked and not self._requested and not self._is_rewound:
            self._acked.clear()


def places_of(ids: Iterable[MessageId]) -> list[Place]:
    """Return the ledger and entry id of each entry of some messages."""
    places: list[Place] = []
    for message_id in ids:
        if message_id.is_chunked:
            places += message_id.parts
        else:
            places.append(message_id[:2])
    return places


def id_after(message_id: MessageId) -> MessageId | None:
    """Return the first id after this one, None for the ids of the earliest and the latest message."""
    ledger, entry, partition, index = message_id
    if not _is_message_id(message_id):
        return None
    return MessageId(ledger, entry + 1, partition) if index < 0 else MessageId(ledger, entry, partition, index + 1)


def id_before(message_id: MessageId) -> MessageId:
    """Return an id between a message and the one before it; the earliest and the latest id stay."""
    ledger, entry, partition, index = message_id
    if index > 0:
        return MessageId(ledger, entry, partition, index - 1)
    return MessageId(ledger, entry - 1, partition) if _is_message_id(message_id) else message_id


def is_after(one: MessageId, other: MessageId) -> bool:
    """Return whether a message comes after another one of its topic or partition.

    An id without a batch index stands for the whole entry.
    """
    place, other_place = one[:2], other[:2]
    return place > other_place or (place == other_place and one[3] > other[3] >= 0)


# --- positions that users name ----------------------------------------------------------------------------------------


def id_or_time(value: object, field: str = "position") -> MessageId | int:
    """Return a position as a message id (the ends have ids too) or a publish time in epoch ms.

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
    place = id_or_time(value, "start")
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
