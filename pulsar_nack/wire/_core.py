"""What everything that one client makes shares: its connections, the lookup, its options, its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..clock import Clock
from ..errors import BrokerError
from ._prefetched import Prefetched
from ._refusals import is_transient

if TYPE_CHECKING:
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

    async def tried(
        self, connect: Callable[[], Awaitable[None]], is_connected: Callable[[], bool], check_open: Callable[[], None]
    ) -> None:
        """Connect what was just made; what may pass by itself is tried again, for as long as a request may take.

        :param check_open: called after each pause; raises where it was closed meanwhile
        :raises BrokerError: what the last attempt raised
        """
        backoff = self.options.backoff()
        ends_at = self.loop.time() + self.options.request_timeout.total_seconds()
        attempt = 0
        while not is_connected():
            try:
                await connect()
            except BrokerError as error:
                pause = float(backoff(attempt))
                if not is_transient(error) or self.loop.time() + pause > ends_at:
                    raise
                attempt += 1
                await asyncio.sleep(pause)
                check_open()
