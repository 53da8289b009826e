"""Chunked messages: their parts are gathered here until all are there. Pure.

Parts come in the order of their ids, those of several messages mixed, and again after a redelivery; a part that is here
already changes nothing. The producer names a message by a uuid, and uses it again when it sends a message anew after it
lost its connection: then the later parts count, and the earlier ones are acknowledged and asked for with them, since
they are the same message.

Memory is bounded: by the number of unfinished messages, by the bytes of their parts, and by time. What has no room, or
took too long, is given up, and its parts go back to the broker; nothing is acknowledged that was not shown. A message
that is larger than all the room there is counts its parts only, and is told as one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..ids import Position


@dataclass(frozen=True, slots=True)
class Part:
    """One entry that holds a part.

    :param uuid: names the message
    :param index: of the part, from 0; ``count`` is how many there are
    :param total_bytes: of the whole message, as it was cut up
    """

    uuid: str
    index: int
    count: int
    total_bytes: int
    position: Position
    payload: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    """A message of which all parts are here.

    :param positions: of all its parts in order, the last one last; also of those that were sent in vain, first
    :param payload: what was cut up, None: too large to be kept
    """

    positions: tuple[Position, ...]
    payload: bytes | None


@dataclass(slots=True)
class _Unfinished:
    count: int
    total_bytes: int
    expires_at_ms: int
    is_kept: bool
    parts: dict[int, tuple[Position, bytes]] = field(default_factory=dict)
    superseded: set[Position] = field(default_factory=set)
    bytes: int = 0

    def positions(self) -> set[Position]:
        return {position for position, _ in self.parts.values()} | self.superseded


class Chunks:
    """The unfinished messages of one topic or partition.

    :param most: most unfinished messages; the oldest is given up for a new one
    :param max_bytes: most memory for their parts
    :param timeout_ms: how long the parts of one may take, from the first
    """

    def __init__(self, most: int, max_bytes: int, timeout_ms: int) -> None:
        self.bytes = 0
        self._most = most
        self._max_bytes = max_bytes
        self._timeout_ms = timeout_ms
        self._unfinished: dict[str, _Unfinished] = {}
        self._given_up: list[Position] = []

    def __len__(self) -> int:
        return len(self._unfinished)

    def add(self, part: Part, now_ms: int) -> Whole | None:
        """Take a part; return the message if it was the last one that was missing."""
        message = self._unfinished.get(part.uuid)
        if message is not None and (message.count, message.total_bytes) != (part.count, part.total_bytes):
            self._give_up(part.uuid)
            message = None
        if message is None:
            message = self._begin(part, now_ms)
        self._put(message, part)
        if len(message.parts) == message.count:
            return self._finish(part.uuid, message)
        while self.bytes > self._max_bytes:
            self._give_up(next(iter(self._unfinished)))
        return None

    def given_up(self, now_ms: int) -> list[Position]:
        """Give up what took too long; return the entries that are to go back since the last call."""
        for uuid in [uuid for uuid, message in self._aged(now_ms)]:
            self._give_up(uuid)
        given_up, self._given_up = self._given_up, []
        return given_up

    def next_at(self) -> int | None:
        """Return when the oldest message will have taken too long, 0 if one was given up, None if there is nothing."""
        if self._given_up:
            return 0
        return next((message.expires_at_ms for message in self._unfinished.values()), None)

    def positions(self) -> list[Position]:
        """Return the entries that are here in part, or are to go back."""
        unfinished = (message.positions() for message in self._unfinished.values())
        return [*self._given_up, *(position for positions in unfinished for position in positions)]

    def clear(self) -> None:
        """Drop all: the broker sends everything again."""
        self._unfinished.clear()
        self._given_up.clear()
        self.bytes = 0

    def _begin(self, part: Part, now_ms: int) -> _Unfinished:
        if len(self._unfinished) >= self._most:
            self._give_up(next(iter(self._unfinished)))
        is_kept = part.total_bytes <= self._max_bytes
        message = _Unfinished(part.count, part.total_bytes, now_ms + self._timeout_ms, is_kept)
        self._unfinished[part.uuid] = message
        return message

    def _put(self, message: _Unfinished, part: Part) -> None:
        known = message.parts.get(part.index)
        if known is not None and known[0] == part.position:
            return
        if known is not None and part.position < known[0]:
            message.superseded.add(part.position)
            return
        payload = part.payload if message.is_kept else b""
        if known is not None:
            message.superseded.add(known[0])
            self._count(message, -len(known[1]))
        message.parts[part.index] = (part.position, payload)
        self._count(message, len(payload))

    def _finish(self, uuid: str, message: _Unfinished) -> Whole:
        self._drop(uuid)
        parts = [message.parts[index] for index in range(message.count)]
        superseded = sorted(message.superseded - {position for position, _ in parts})
        payload = b"".join(payload for _, payload in parts) if message.is_kept else None
        return Whole((*superseded, *(position for position, _ in parts)), payload)

    def _give_up(self, uuid: str) -> None:
        self._given_up.extend(sorted(self._drop(uuid).positions()))

    def _drop(self, uuid: str) -> _Unfinished:
        message = self._unfinished.pop(uuid)
        self.bytes -= message.bytes
        return message

    def _count(self, message: _Unfinished, change: int) -> None:
        message.bytes += change
        self.bytes += change

    def _aged(self, now_ms: int) -> Iterator[tuple[str, _Unfinished]]:
        for uuid, message in self._unfinished.items():
            if message.expires_at_ms > now_ms:
                return
            yield uuid, message
