"""The batches that are being filled: one, or one for each key."""

from __future__ import annotations

from ._outgoing import Outgoing

_OF_A_MESSAGE = 8  # bytes beside its size, for sizes of metadata and payload


class Batches:
    """Holds messages until their batch is full or its time is over; whoever uses it looks at the time.

    :param max_messages: of a batch
    :param max_bytes: of a batch, more only if its one message is larger; may be set later
    :param by_key: a batch has messages of one key only; then batches are closed in the order of their first messages
    """

    def __init__(self, max_messages: int, max_bytes: int, *, by_key: bool) -> None:
        self._max_messages = max_messages
        self.max_bytes = max_bytes
        self._by_key = by_key
        self._open: dict[object, list[Outgoing]] = {}
        self._bytes: dict[object, int] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, message: Outgoing) -> list[list[Outgoing]]:
        """Add a message; return the batches that are full now, to be sent in this order."""
        key = (message.ordering_key, message.key) if self._by_key else None
        full: list[list[Outgoing]] = []
        size = message.size + _OF_A_MESSAGE
        taken = self._bytes.get(key, 0)
        if taken and taken + size > self.max_bytes:
            full.append(self._close(key))
            taken = 0
        self._open.setdefault(key, []).append(message)
        self._bytes[key] = taken + size
        if taken + size >= self.max_bytes or len(self._open[key]) >= self._max_messages:
            full.append(self._close(key))
        return full

    def close_all(self) -> list[list[Outgoing]]:
        """Return all batches, to be sent in this order."""
        return [self._close(key) for key in list(self._open)]

    def _close(self, key: object) -> list[Outgoing]:
        del self._bytes[key]
        return self._open.pop(key)
