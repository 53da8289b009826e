"""Requests for redelivery, gathered for a moment and sent together, at most 1 000 entries in a command.

The first is sent at once; those that come within the next millisecond wait for its end. Nothing is
kept over the end of a connection: the broker then gives everything unacknowledged out again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

MOST_IDS: Final = 1_000
"""In one command; brokers refuse more."""
SPACING_S: Final = 0.001


class Redeliveries:
    """Those of one consumer while it is subscribed.

    :param send: asks the broker for entries, each by ledger and entry id
    :param most: entries in a command
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Sequence[tuple[int, int]]], None],
        spacing: float = SPACING_S,
        *,
        most: int = MOST_IDS,
    ) -> None:
        self._loop = loop
        self._send = send
        self._spacing = spacing
        self._most = most
        self._wanted: dict[tuple[int, int], None] = {}
        self._handle: asyncio.Handle | None = None
        self._sent_at = -1e9

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, positions: Iterable[tuple[int, int]]) -> None:
        """Ask for entries, each once."""
        self._wanted.update(dict.fromkeys(positions))
        if self._handle is None and self._wanted:
            at = self._sent_at + self._spacing
            if at <= self._loop.time():
                self._flush()
            else:
                self._handle = self._loop.call_at(at, self._flush)

    def clear(self) -> None:
        """Forget what was not sent."""
        self._wanted.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _flush(self) -> None:
        self._handle = None
        self._sent_at = self._loop.time()
        wanted, self._wanted = iter(self._wanted), {}
        while some := list(islice(wanted, self._most)):
            self._send(some)
