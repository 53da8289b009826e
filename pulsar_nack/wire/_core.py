"""What everything that one client makes shares: its connections, the lookup, its options, its loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..clock import Clock

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
