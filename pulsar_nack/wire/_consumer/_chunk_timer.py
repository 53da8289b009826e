"""Returns the chunks of messages that stay incomplete to the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ..._delays import delay_ms
from ..._foreign import shown
from ...ids import Position
from .._connection._context import ClientContext
from .._protocol._chunks import ChunkAssembler
from ._subscribe_options import SubscribeOptions

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_WARN_AFTER: Final = 3
"""A chunked message is logged when its chunks have been returned this often."""


class ChunkTimer:
    """The incomplete chunked messages of one topic or partition, and the timer that gives them up.

    :param give_back: asks the broker to send entries again, to any consumer
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: SubscribeOptions,
        give_back: Callable[[Sequence[tuple[int, int]]], None],
    ) -> None:
        self.chunks = ChunkAssembler(
            options.max_pending_chunked, options.max_chunked_bytes, delay_ms(options.chunk_timeout, "chunk_timeout")
        )
        self._topic = topic
        self._loop = context.loop
        self._now_ms = context.clock.now_ms
        self._give_back = give_back
        self._timer: asyncio.TimerHandle | None = None

    def positions(self) -> list[Position]:
        """Return the entries of incomplete messages."""
        return self.chunks.positions()

    def clear(self) -> None:
        """Drop all chunks: the broker sends them again."""
        self.chunks.clear()
        self.update()

    def update(self) -> None:
        """Set the timer after a change of the chunks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_at = self.chunks.next_at()
        if next_at is not None:
            delay_s = max(next_at - self._now_ms(), 0) / 1000
            self._timer = self._loop.call_later(delay_s, self._return_expired)

    def _return_expired(self) -> None:
        self._timer = None
        positions: list[tuple[int, int]] = []
        for abandoned in self.chunks.take_abandoned(self._now_ms()):
            if abandoned.times == _WARN_AFTER:
                _LOG.warning(
                    "%s: %d of %d chunks of the message %s are here, and were returned to the broker %d times; is its "
                    "producer gone, or max_chunked_bytes too small? Retrying at growing intervals",
                    self._topic,
                    abandoned.received,
                    abandoned.expected,
                    shown(abandoned.uuid),
                    abandoned.times,
                )
            positions += abandoned.positions
        self._give_back(positions)
        self.update()
