"""Shared by the consumers and producers of one client: connections, lookup, options, event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...clock import Clock
from .._consumer._flow import MemoryLimitController

if TYPE_CHECKING:
    from ._connection import Connection
    from ._lookup import Lookup
    from ._options import ClientOptions
    from ._pool import Pool

_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Made once for each client, in its event loop.

    :param pool: the connections, one to each broker
    :param lookup: finds the broker of a topic
    :param options: the client's settings
    :param loop: the only loop in which the client may be used
    :param clock: the loop's time, in ms
    """

    pool: Pool
    lookup: Lookup
    options: ClientOptions
    loop: asyncio.AbstractEventLoop
    clock: Clock
    memory_limit: MemoryLimitController = field(init=False)
    threads: ThreadPoolExecutor = field(init=False)
    """Starts its threads on demand. The loop's own executor may be full of user code that waits for these threads."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_limit", MemoryLimitController(self.options.max_prefetched_bytes or None))
        object.__setattr__(self, "threads", ThreadPoolExecutor(_THREADS, thread_name_prefix="pulsar-nack-wire"))

    async def aclose(self) -> None:
        """Close the connections and end the threads."""
        self.threads.shutdown(wait=False)
        await self.pool.aclose()

    async def connection(self, topic: str, url: str | None) -> Connection:
        """Return a connection to the broker of a topic: the one at ``url`` if given, otherwise by lookup."""
        return await (self.lookup.broker(topic) if url is None else self.pool.get(url))

    def deadline(self) -> float:
        """Return the loop time at which a call that begins now has used up ``request_timeout``."""
        return self.loop.time() + self.options.request_timeout.total_seconds()
