"""Assembles chunked messages: gathers the chunks of a message until all have arrived. Pure.

The chunks of one message arrive in order, mixed with those of others, and again after a redelivery; a chunk that is
here already changes nothing. The producer names a message by a uuid, and uses it again when it resends the message
after a lost connection. Then the later chunks count; the earlier ones are acknowledged and redelivered with them, since
they are the same message.

Memory is bounded by the number of partial messages, by the bytes and number of their chunks, and by time. Publishers
choose uuids, so of a long one only the beginning and a digest are kept. A message for which there is no space, or that
takes too long, is abandoned: its chunks are redelivered, and nothing is acknowledged that was not delivered. The chunks
mostly come again, and each time the message gets more time, so one that is never completed, because its producer is
gone, costs less and less. Of a message larger than the whole limit the chunks are only counted; it is delivered as
unreadable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from ..._foreign import MAX_SHOWN
from ...ids import Position
from . import _pulsar_pb2 as pb
from ._entries import text_of

_PAUSE_MS: Final = 1_000
"""How long the chunks of a message without space wait at least before they are redelivered."""
_MAX_DOUBLINGS: Final = 6
_MAX_REMEMBERED: Final = 1_000
"""Abandoned messages that are remembered."""
_OVERHEAD_BYTES: Final = 200
"""Bookkeeping of a chunk, about; the number of chunks is limited to ``max_bytes`` divided by this."""
_MIN_CHUNKS: Final = 5_000
"""This many chunks are allowed, however small ``max_bytes`` is."""
_MAX_ABANDONED: Final = 10_000
"""If more chunks than this were abandoned, they are redelivered at once, without the pause."""
_SPARE: Final = 64
"""This many expiries of messages that are complete may be kept."""

_Expiry = tuple[int, int, str]
"""When a message is abandoned, in ms; a number that no other has; and the message's uuid."""


def short_uuid(uuid: str) -> str:
    """Return a message's uuid; of a long one the beginning and a digest."""
    if len(uuid) <= MAX_SHOWN:
        return uuid
    return f"{uuid[:100]}...{blake2b(uuid.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


@dataclass(slots=True)
class ChunkedMessage:
    """A message of which chunks have arrived.

    :param count: how many chunks there are
    :param total_bytes: of the whole message, before it was cut into chunks
    :param is_kept: whether the payloads of its chunks are kept; otherwise they are only counted
    :param chunks: the position and payload of each chunk that is here, by index
    :param superseded: the positions of chunks that were sent again
    :param kept_bytes: size of the payloads that are kept
    :param sequence_id: that in its last chunk; our producers set the previous message's in the others
    """

    count: int
    total_bytes: int
    expiry: _Expiry
    is_kept: bool
    chunks: dict[int, tuple[Position, bytes]] = field(default_factory=dict)
    superseded: set[Position] = field(default_factory=set)
    kept_bytes: int = 0
    sequence_id: int = 0

    def positions(self) -> list[Position]:
        """Return the positions of all its chunks, also of superseded ones, sorted."""
        return sorted({position for position, _ in self.chunks.values()} | self.superseded)

    def payload(self) -> bytes | None:
        """Return the payload of all chunks together, None: too large to be kept."""
        return b"".join(self.chunks[index][1] for index in range(self.count)) if self.is_kept else None


class AbandonedMessage(NamedTuple):
    """A message that was abandoned ``times`` times, with ``received`` of ``expected`` chunks."""

    uuid: str
    positions: list[Position]
    received: int
    expected: int
    times: int


class ChunkAssembler:
    """The partial messages of one topic or partition.

    :param most: most partial messages; a new one replaces the oldest
    :param max_bytes: most memory for their chunks
    :param timeout_ms: how long a message may take from its first chunk; doubled each time it was abandoned
    """

    def __init__(self, most: int, max_bytes: int, timeout_ms: int) -> None:
        self.bytes = 0
        self._most = most
        self._max_bytes = max_bytes
        self._chunk_count = 0
        self._max_chunks = max(max_bytes // _OVERHEAD_BYTES, _MIN_CHUNKS)
        self._timeout_ms = timeout_ms
        self._partial: dict[str, ChunkedMessage] = {}
        self._expiries: list[_Expiry] = []
        self._started = 0
        self._abandoned: list[AbandonedMessage] = []
        self._abandoned_chunks = 0
        self._return_at_ms = 0
        self._full_rounds = 0
        self._times_abandoned: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._partial)

    def add(
        self, metadata: pb.MessageMetadata, position: Position, payload: bytes, now_ms: int
    ) -> ChunkedMessage | None:
        """Add an entry that holds a chunk; return the message if that completes it."""
        uuid, count = short_uuid(text_of(metadata.uuid)), metadata.num_chunks_from_msg
        message = self._partial.get(uuid)
        if message is not None and (message.count, message.total_bytes) != (count, metadata.total_chunk_msg_size):
            self._abandon(uuid, now_ms + _PAUSE_MS)
            message = None
        if message is None:
            message = self._begin(uuid, count, metadata.total_chunk_msg_size, now_ms)
        self._put(message, metadata, position, payload)
        if len(message.chunks) == count:
            self._drop(uuid)
            self._times_abandoned.pop(uuid, None)
            self._full_rounds = 0
            return message
        while self.bytes > self._max_bytes or self._chunk_count > self._max_chunks:
            self._abandon_oldest(now_ms)
        return None

    def take_abandoned(self, now_ms: int) -> list[AbandonedMessage]:
        """Abandon messages that took too long; return the abandoned messages whose chunks are to be redelivered now."""
        while (next_at := self._next_expiry()) is not None and next_at <= now_ms:
            self._abandon(self._expiries[0][2], now_ms)
        if not self._abandoned or now_ms < self._return_at_ms:
            return []
        self._full_rounds += 1
        abandoned, self._abandoned = self._abandoned, []
        self._abandoned_chunks = 0
        return abandoned

    def next_at(self) -> int | None:
        """Return when :meth:`take_abandoned` has something to return, in ms; None: never."""
        expiry = self._next_expiry()
        if not self._abandoned:
            return expiry
        return self._return_at_ms if expiry is None else min(self._return_at_ms, expiry)

    def _next_expiry(self) -> int | None:
        while self._expiries:
            if self._is_pending(self._expiries[0]):
                return self._expiries[0][0]
            heappop(self._expiries)
        return None

    def _is_pending(self, expiry: _Expiry) -> bool:
        message = self._partial.get(expiry[2])
        return message is not None and message.expiry is expiry

    def positions(self) -> list[Position]:
        """Return the positions of all chunks here, also of those that are to be redelivered."""
        partial = (message.positions() for message in self._partial.values())
        abandoned = (each.positions for each in self._abandoned)
        return [position for positions in (*abandoned, *partial) for position in positions]

    def clear(self) -> None:
        """Drop all messages: the broker sends everything again."""
        self._partial.clear()
        self._expiries.clear()
        self._abandoned.clear()
        self._abandoned_chunks = 0
        self.bytes = self._chunk_count = 0

    def _begin(self, uuid: str, count: int, total_bytes: int, now_ms: int) -> ChunkedMessage:
        if len(self._partial) >= self._most:
            self._abandon_oldest(now_ms)
        timeout_ms = self._timeout_ms << min(self._times_abandoned.get(uuid, 0), _MAX_DOUBLINGS)
        self._started += 1
        expiry = (now_ms + timeout_ms, self._started, uuid)
        self._partial[uuid] = message = ChunkedMessage(count, total_bytes, expiry, total_bytes <= self._max_bytes)
        heappush(self._expiries, expiry)
        if len(self._expiries) > 2 * len(self._partial) + _SPARE:
            self._expiries = list(filter(self._is_pending, self._expiries))
            heapify(self._expiries)
        return message

    def _put(self, message: ChunkedMessage, metadata: pb.MessageMetadata, position: Position, payload: bytes) -> None:
        index = metadata.chunk_id
        known = message.chunks.get(index)
        if known is not None and known[0] == position:
            return
        if known is not None and position < known[0]:
            self._supersede(message, position)
            return
        if not message.is_kept:
            payload = b""
        if known is not None:
            self._supersede(message, known[0])
            self._count(message, -len(known[1]))
        else:
            self._chunk_count += 1
        message.chunks[index] = (position, payload)
        if index == message.count - 1:
            message.sequence_id = metadata.sequence_id
        self._count(message, len(payload))

    def _supersede(self, message: ChunkedMessage, position: Position) -> None:
        self._chunk_count += position not in message.superseded
        message.superseded.add(position)

    def _abandon_oldest(self, now_ms: int) -> None:
        """Make space. The chunks are redelivered together, after pauses that grow until a message is completed."""
        pause_ms = min(_PAUSE_MS << min(self._full_rounds, _MAX_DOUBLINGS), max(self._timeout_ms, _PAUSE_MS))
        self._abandon(next(iter(self._partial)), now_ms + pause_ms)

    def _abandon(self, uuid: str, due_at_ms: int) -> None:
        message = self._drop(uuid)
        times = self._times_abandoned.pop(uuid, 0) + 1
        self._times_abandoned[uuid] = times
        if len(self._times_abandoned) > _MAX_REMEMBERED:
            del self._times_abandoned[next(iter(self._times_abandoned))]
        self._return_at_ms = min(self._return_at_ms, due_at_ms) if self._abandoned else due_at_ms
        abandoned = AbandonedMessage(uuid, message.positions(), len(message.chunks), message.count, times)
        self._abandoned.append(abandoned)
        self._abandoned_chunks += len(abandoned.positions)
        if self._abandoned_chunks > _MAX_ABANDONED:
            self._return_at_ms = 0  # now

    def _drop(self, uuid: str) -> ChunkedMessage:
        message = self._partial.pop(uuid)
        self.bytes -= message.kept_bytes
        self._chunk_count -= len(message.chunks) + len(message.superseded)
        return message

    def _count(self, message: ChunkedMessage, change: int) -> None:
        message.kept_bytes += change
        self.bytes += change
