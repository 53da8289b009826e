"""Requests for redelivery, collected for a millisecond and sent together, at most 1 000 entries in a command.

The first request is sent immediately; requests within the next millisecond wait for its end. Nothing survives the end
of a connection, because the broker then redelivers everything that is not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from ...ids import MessageId

Place = tuple[int, int]
"""A ledger and an entry id."""
MAX_ENTRIES: Final = 1_000
"""Most entries in one command; brokers refuse more."""
SPACING_S: Final = 0.001


class RedeliveryRequests:
    """The redelivery requests of one consumer while it is subscribed.

    :param send: asks the broker for entries
    :param max_entries: most entries in a command
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Sequence[Place]], None],
        *,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._loop = loop
        self._send = send
        self._max_entries = max_entries
        self._wanted: dict[Place, None] = {}
        self._handle: asyncio.Handle | None = None
        self._sent_at = -1e9

    def add(self, places: Iterable[Place]) -> None:
        """Request entries, each once."""
        self._wanted.update(dict.fromkeys(places))
        if self._handle is None and self._wanted:
            at = self._sent_at + SPACING_S
            if at <= self._loop.time():
                self._flush()
            else:
                self._handle = self._loop.call_at(at, self._flush)

    def clear(self) -> None:
        """Forget requests that were not sent."""
        self._wanted.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _flush(self) -> None:
        self._handle = None
        self._sent_at = self._loop.time()
        wanted, self._wanted = iter(self._wanted), {}
        while some := list(islice(wanted, self._max_entries)):
            self._send(some)


def places_of(ids: Iterable[MessageId]) -> list[Place]:
    """Return the ledger and entry id of each entry of some messages."""
    places: list[Place] = []
    for message_id in ids:
        if message_id.is_chunked:
            places += message_id.parts
        else:
            places.append(message_id[:2])
    return places
