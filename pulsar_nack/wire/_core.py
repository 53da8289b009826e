"""What everything that one client makes shares: its connections, the lookup, its options, its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..clock import Clock
from ..errors import BrokerError, ClosedError
from ._prefetched import Prefetched
from ._refusals import is_busy, is_transient

_BUSY_S: Final = 1.0

if TYPE_CHECKING:
    from ._connection import Connection
    from ._lookup import Lookup
    from ._options import ClientOptions
    from ._pool import Pool


@dataclass(frozen=True, slots=True)
class Core:
    """Made once for each client, in its loop.

    :param pool: connections, one to each broker
    :param lookup: finds the broker of a topic
    :param options: how brokers are reached, and how long is waited for what
    :param loop: the only loop in which any of it may be used
    :param clock: that loop's time, in ms
    """

    pool: Pool
    lookup: Lookup
    options: ClientOptions
    loop: asyncio.AbstractEventLoop
    clock: Clock
    prefetched: Prefetched = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefetched", Prefetched(self.options.max_prefetched_bytes or None))

    async def connection(self, topic: str, url: str | None) -> Connection:
        """Return a connection to the broker that has a topic: at ``url`` where that was told, else whatever it is."""
        return await (self.lookup.broker(topic) if url is None else self.pool.get(url))

    async def tried(
        self, connect: Callable[[], Awaitable[None]], is_connected: Callable[[], bool], check_open: Callable[[], None]
    ) -> None:
        """Connect what was just made; what may pass by itself is tried again, for as long as a request may take.

        A place that is taken is tried for a moment only: it may be that of a predecessor whose connection just broke.

        :param check_open: called after each pause; raises where it was closed meanwhile
        :raises BrokerError: what the last attempt raised
        """
        backoff = self.options.backoff()
        limit = self.options.request_timeout.total_seconds()
        started_at = self.loop.time()
        attempt = 0
        while not is_connected():
            try:
                await connect()
            except BrokerError as error:
                pause = float(backoff(attempt))
                may_take = limit if is_transient(error) else min(_BUSY_S, limit) if is_busy(error) else 0.0
                if self.loop.time() + pause > started_at + may_take:
                    raise
                attempt += 1
                await asyncio.sleep(pause)
                check_open()

    async def reconnect(
        self,
        connect: Callable[[], Awaitable[None]],
        is_over: Callable[[], bool],
        failed: Callable[[Exception], None],
        *,
        attempt: int,
        at_once: bool,
    ) -> None:
        """Connect what was connected before, until it is. Whatever fails, but for a cancellation, is one failed try.

        :param is_over: whether it is connected, or is not to be any more
        :param failed: called with what each try raised, be it an authentication of the user's
        :param attempt: from which on to count: the more, the longer the pause before each
        :param at_once: whether there is no pause before the attempt 0
        :raises ClosedError: the client is closed
        """
        backoff = self.options.backoff()
        while not is_over():
            if attempt or not at_once:
                await asyncio.sleep(float(backoff(attempt)))
            attempt += 1
            try:
                await connect()
            except Exception as error:
                if self.pool.is_closed:
                    raise ClosedError("the client") from error
                if not is_over():
                    failed(error)
