"""Questions to a broker that is there, and not ready yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import BrokerError, ConnectionLostError
from ._options import ClientOptions
from ._refusals import is_transient

T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]], options: ClientOptions) -> T:
    """Return the answer; what the broker refuses for the moment is asked again, for as long as a request may take.

    Where nobody is there it raises at once: an address may be wrong.

    :raises BrokerError: the last answer
    """
    loop = asyncio.get_running_loop()
    backoff, attempt = options.backoff(), 0
    ends_at = loop.time() + options.request_timeout.total_seconds()
    while True:
        try:
            return await ask()
        except BrokerError as error:
            pause = float(backoff(attempt))
            may_pass = is_transient(error) and not isinstance(error, ConnectionLostError)
            if not may_pass or loop.time() + pause > ends_at:
                raise
        attempt += 1
        await asyncio.sleep(pause)
