"""Shared by the consumers and producers of one client: connections, lookup, options, event loop."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...clock import Clock
from ...errors import BrokerError
from .._consumer._flow import MemoryLimitController

if TYPE_CHECKING:
    from ._lookup import Lookup
    from ._options import ClientOptions
    from ._pool import Pool

_LOG: Final = logging.getLogger("pulsar_nack.wire")
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

    def checked_cluster(self, topic: str, url: str | None) -> str | None:
        """Return the service URL that a broker names for the cluster of a topic; None, and a log line, if it is wrong.

        Consumers move later than producers, once they have no backlog, so each of them keeps its own URL.
        """
        try:
            addresses = self.pool.parsed(url or "")
        except BrokerError as error:
            _LOG.warning("%s has moved to another cluster, but is still looked up in this one: %s", topic, error)
            return None
        _LOG.info("%s has moved to the cluster at %s", topic, ", ".join(map(str, addresses)))
        return url

    def deadline(self) -> float:
        """Return the loop time at which a call that begins now has used up ``request_timeout``."""
        return self.loop.time() + self.options.request_timeout.total_seconds()
