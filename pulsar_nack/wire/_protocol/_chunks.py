"""Chunked messages: their parts are gathered here until all are there. Pure.

Parts come in the order of their ids, those of several messages mixed, and again after a redelivery; a part that is here
already changes nothing. The producer names a message by a uuid, and uses it again when it sends a message anew after it
lost its connection: then the later parts count, and the earlier ones are acknowledged and asked for with them, since
they are the same message.

Memory is bounded by the number of unfinished messages, by the bytes and number of their parts, and by time. Publishers
choose uuids, so of a long one only the beginning and a digest are kept. A message that finds no room, or takes too
long, is given up: its parts go back to the broker, and nothing is acknowledged that was not delivered. The parts mostly
come again, and each time the message gets more time: one that is never completed, since its producer is gone, costs
less and less. Of a message larger than the whole limit only the parts are counted; it is delivered as unreadable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final, NamedTuple

from ..._foreign import MOST_SHOWN
from ...ids import Position

_PAUSE_MS: Final = 1_000
"""At least so long parts that there was no room for stay with this consumer before they go back."""
_MOST_DOUBLINGS: Final = 6
_MOST_KNOWN: Final = 1_000
"""Messages that were given up and are remembered."""
_NOTED_BYTES: Final = 200
"""Bookkeeping of a part, about; the number of parts is limited to ``max_bytes`` divided by this."""
_LEAST_PARTS: Final = 5_000
"""This many parts are allowed, however small ``max_bytes`` is."""
_MOST_GIVEN_UP: Final = 10_000
"""If more parts than this were given up, they go back at once, without the pause."""


def short_uuid(uuid: str) -> str:
    """Return a message's uuid; of a long one the beginning and a digest."""
    if len(uuid) <= MOST_SHOWN:
        return uuid
    return f"{uuid[:100]}...{blake2b(uuid.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Part:
    """One entry that holds a part.

    :param uuid: names the message
    :param index: of the part, from 0; ``count`` is how many there are
    :param total_bytes: of the whole message, as it was cut up
    :param sequence_id: that of the message in its last part; our producers give the others that of the message before
    """

    uuid: str
    index: int
    count: int
    total_bytes: int
    position: Position
    payload: bytes
    sequence_id: int = 0


@dataclass(frozen=True, slots=True)
class Whole:
    """A message of which all parts are here.

    :param positions: of all its parts in order, the last one last; also of those that were sent in vain, first
    :param payload: what was cut up, None: too large to be kept
    """

    positions: tuple[Position, ...]
    payload: bytes | None
    sequence_id: int = 0


@dataclass(slots=True)
class _Unfinished:
    count: int
    total_bytes: int
    expires_at_ms: int
    is_kept: bool
    parts: dict[int, tuple[Position, bytes]] = field(default_factory=dict)
    superseded: set[Position] = field(default_factory=set)
    bytes: int = 0
    sequence_id: int = 0

    def positions(self) -> set[Position]:
        return {position for position, _ in self.parts.values()} | self.superseded


class GivenUp(NamedTuple):
    """A message that was given up: its parts that were here, of how many, and how often that has happened."""

    uuid: str
    positions: list[Position]
    here: int
    of: int
    times: int


class Chunks:
    """The unfinished messages of one topic or partition.

    :param most: most unfinished messages; the oldest is given up for a new one
    :param max_bytes: most memory for their parts
    :param timeout_ms: how long the parts of one may take, from the first; twice as long each time it was given up
    """

    def __init__(self, most: int, max_bytes: int, timeout_ms: int) -> None:
        self.bytes = 0
        self._most = most
        self._max_bytes = max_bytes
        self._parts = 0
        self._max_parts = max(max_bytes // _NOTED_BYTES, _LEAST_PARTS)
        self._timeout_ms = timeout_ms
        self._unfinished: dict[str, _Unfinished] = {}
        self._expiries: list[tuple[int, int, str]] = []
        self._begun = 0
        self._given_up: list[GivenUp] = []
        self._parts_given_up = 0
        self._back_at_ms = 0
        self._rounds = 0
        self._times: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def add(self, part: Part, now_ms: int) -> Whole | None:
        """Take a part; return the message if it was the last one that was missing."""
        message = self._unfinished.get(part.uuid)
        if message is not None and (message.count, message.total_bytes) != (part.count, part.total_bytes):
            self._give_up(part.uuid, now_ms + _PAUSE_MS)
            message = None
        if message is None:
            message = self._begin(part, now_ms)
        self._put(message, part)
        if len(message.parts) == message.count:
            return self._finish(part.uuid, message)
        while self.bytes > self._max_bytes or self._parts > self._max_parts:
            self._give_up_oldest(now_ms)
        return None

    def given_up(self, now_ms: int) -> list[GivenUp]:
        """Give up what took too long; return what is to go back now."""
        while (next_at := self._next_expiry()) is not None and next_at <= now_ms:
            self._give_up(self._expiries[0][2], now_ms)
        if not self._given_up or now_ms < self._back_at_ms:
            return []
        self._rounds += 1
        given_up, self._given_up = self._given_up, []
        self._parts_given_up = 0
        return given_up

    def next_at(self) -> int | None:
        """Return when :meth:`given_up` has something to return; None: never."""
        expiry = self._next_expiry()
        if not self._given_up:
            return expiry
        return self._back_at_ms if expiry is None else min(self._back_at_ms, expiry)

    def _next_expiry(self) -> int | None:
        while self._expiries:
            expires_at_ms, _, uuid = self._expiries[0]
            message = self._unfinished.get(uuid)
            if message is not None and message.expires_at_ms == expires_at_ms:
                return expires_at_ms
            heappop(self._expiries)
        return None

    def positions(self) -> list[Position]:
        """Return the entries that are here in part, or are to go back."""
        unfinished = (message.positions() for message in self._unfinished.values())
        given_up = (each.positions for each in self._given_up)
        return [position for positions in (*given_up, *unfinished) for position in positions]

    def clear(self) -> None:
        """Drop all: the broker sends everything again."""
        self._unfinished.clear()
        self._expiries.clear()
        self._given_up.clear()
        self._parts_given_up = 0
        self.bytes = self._parts = 0

    def _begin(self, part: Part, now_ms: int) -> _Unfinished:
        if len(self._unfinished) >= self._most:
            self._give_up_oldest(now_ms)
        is_kept = part.total_bytes <= self._max_bytes
        timeout_ms = self._timeout_ms << min(self._times.get(part.uuid, 0), _MOST_DOUBLINGS)
        message = _Unfinished(part.count, part.total_bytes, now_ms + timeout_ms, is_kept)
        self._unfinished[part.uuid] = message
        self._begun += 1
        heappush(self._expiries, (message.expires_at_ms, self._begun, part.uuid))
        return message

    def _put(self, message: _Unfinished, part: Part) -> None:
        known = message.parts.get(part.index)
        if known is not None and known[0] == part.position:
            return
        if known is not None and part.position < known[0]:
            self._supersede(message, part.position)
            return
        payload = part.payload if message.is_kept else b""
        if known is not None:
            self._supersede(message, known[0])
            self._count(message, -len(known[1]))
        else:
            self._parts += 1
        message.parts[part.index] = (part.position, payload)
        if part.index == message.count - 1:
            message.sequence_id = part.sequence_id
        self._count(message, len(payload))

    def _supersede(self, message: _Unfinished, position: Position) -> None:
        self._parts += position not in message.superseded
        message.superseded.add(position)

    def _finish(self, uuid: str, message: _Unfinished) -> Whole:
        self._drop(uuid)
        self._times.pop(uuid, None)
        self._rounds = 0
        parts = [message.parts[index] for index in range(message.count)]
        superseded = sorted(message.superseded - {position for position, _ in parts})
        payload = b"".join(payload for _, payload in parts) if message.is_kept else None
        return Whole((*superseded, *(position for position, _ in parts)), payload, message.sequence_id)

    def _give_up_oldest(self, now_ms: int) -> None:
        """Make room; what found none goes back together, and later each time until a message is completed."""
        pause_ms = min(_PAUSE_MS << min(self._rounds, _MOST_DOUBLINGS), max(self._timeout_ms, _PAUSE_MS))
        self._give_up(next(iter(self._unfinished)), now_ms + pause_ms)

    def _give_up(self, uuid: str, due_at_ms: int) -> None:
        message = self._drop(uuid)
        times = self._times.pop(uuid, 0) + 1
        self._times[uuid] = times
        if len(self._times) > _MOST_KNOWN:
            del self._times[next(iter(self._times))]
        self._back_at_ms = min(self._back_at_ms, due_at_ms) if self._given_up else due_at_ms
        given_up = GivenUp(uuid, sorted(message.positions()), len(message.parts), message.count, times)
        self._given_up.append(given_up)
        self._parts_given_up += len(given_up.positions)
        if self._parts_given_up > _MOST_GIVEN_UP:
            self._back_at_ms = 0  # now

    def _drop(self, uuid: str) -> _Unfinished:
        message = self._unfinished.pop(uuid)
        self.bytes -= message.bytes
        self._parts -= len(message.parts) + len(message.superseded)
        return message

    def _count(self, message: _Unfinished, change: int) -> None:
        message.bytes += change
        self.bytes += change
