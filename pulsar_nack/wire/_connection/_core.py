"""What everything that one client makes shares: its connections, the lookup, its options, its loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from ...clock import Clock
from ...errors import BrokerError, ClosedError, ConnectionLostError, RequestTimeoutError
from .._consumer._prefetched import Prefetched
from ._refusals import is_busy, is_transient

T = TypeVar("T")
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_BUSY_S: Final = 1.0
_THREADS: Final = 4
_LEAST_TRIES: Final = 15
"""Pauses between tries are at most this part of a request's time: what comes up late is found."""

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
    threads: ThreadPoolExecutor = field(init=False)
    """Its threads begin when they are needed. The loop's may all be the user's, and wait for what is done in these."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefetched", Prefetched(self.options.max_prefetched_bytes or None))
        object.__setattr__(self, "threads", ThreadPoolExecutor(_THREADS, thread_name_prefix="pulsar-nack-wire"))

    async def aclose(self) -> None:
        """Close the connections, and have the threads end."""
        self.threads.shutdown(wait=False)
        await self.pool.aclose()

    async def connection(self, topic: str, url: str | None) -> Connection:
        """Return a connection to the broker that has a topic: at ``url`` where that was told, else whatever it is."""
        return await (self.lookup.broker(topic) if url is None else self.pool.get(url))

    def deadline(self) -> float:
        """Return the time of the loop at which a call that begins now has taken long enough."""
        return self.loop.time() + self.options.request_timeout.total_seconds()

    async def patiently(self, ask: Callable[[], Awaitable[T]], *, ends_at: float | None = None) -> T:
        """Return the answer, asking again until ``ends_at`` while no broker answers or it is not ready.

        A place that is taken is tried for a moment only: it may be that of a predecessor whose connection just broke.

        :param ends_at: time of the loop, None: as long from now as a request may take
        :raises BrokerError: the last error, with the number of tries and the time they took
        """
        limit = self.options.request_timeout.total_seconds()
        began_at = self.loop.time()
        ends_at = began_at + limit if ends_at is None else ends_at
        backoff = self.options.backoff()
        last: BrokerError | None = None
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout_at(ends_at) as time_left:
                    return await ask()
            except BrokerError as error:
                last, may_pass = error, is_transient(error)
                pause = min(float(backoff(tries - 1)), limit / _LEAST_TRIES)
                gives_up_at = ends_at if may_pass else min(began_at + _BUSY_S, ends_at) if is_busy(error) else 0.0
                if self.loop.time() + pause > gives_up_at:
                    if not may_pass or tries == 1:
                        raise
                    raise self._tried(error, tries, began_at) from error.__cause__
                if may_pass and tries == 1:
                    _LOG.warning("%s; trying again for up to %.3g s", error, ends_at - self.loop.time())
            except TimeoutError as error:
                if not time_left.expired():
                    raise
                raise self._tried(last or self._no_answer(), tries, began_at) from error
            await asyncio.sleep(pause)

    def _no_answer(self) -> BrokerError:
        if self.pool.connections():
            return RequestTimeoutError("no answer")
        return ConnectionLostError(f"{self.pool}: not connected")

    def _tried(self, error: BrokerError, tries: int, began_at: float) -> BrokerError:
        """Return a copy of the error, with the number of tries and the time they took."""
        times = "once" if tries == 1 else f"{tries} times"
        copied = copy(error)
        copied.args = (f"{error} (tried {times} in {self.loop.time() - began_at:.3g} s)",)
        return copied

    async def reconnect(
        self,
        connect: Callable[[], Awaitable[None]],
        is_over: Callable[[], bool],
        failed: Callable[[Exception], None],
        *,
        attempt: int,
        at_once: bool,
    ) -> None:
        """Connect again, until that succeeds or is not wanted any more. Any error but a cancellation is a failed try.

        :param is_over: whether it is connected, or is not to be any more
        :param failed: called with what each try raised, also errors of the user's authentication
        :param attempt: number of the first attempt; the higher, the longer the pause before it
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
