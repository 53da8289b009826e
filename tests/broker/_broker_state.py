"""A broker's state of a topic and its subscription during random operations."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final

from pulsar_nack import MessageId
from pulsar_nack.wire import Client
from tests.broker._admin import Admin, AdminError
from tests.broker._workers import NAME
from tests.patience import patience

READER: Final = "reader"
"""A subscription that keeps everything that is stored."""
_UNKNOWN: Final = {"markDeletePosition": "-1:-1", "individuallyDeletedMessages": ""}


class BrokerState:
    """Reads the state from a broker.

    :param urls: of the service and of the admin API
    :param partitions: 0: a topic without partitions
    """

    def __init__(self, urls: tuple[str, str], topic: str, partitions: int) -> None:
        self.admin = Admin(urls[1])
        self.names = [f"{topic}-partition-{at}" for at in range(partitions)] or [topic]
        self._url = urls[0]
        self._topic = topic

    async def cursors(self) -> list[dict[str, Any]]:
        """Return the subscription's cursor in each partition."""
        return [await asyncio.to_thread(self._cursor, name) for name in self.names]

    def _cursor(self, name: str) -> dict[str, Any]:
        with suppress(AdminError, KeyError):  # the topic moves, or the new one has no subscription yet
            cursor: dict[str, Any] = self.admin.internal_stats(name)["cursors"][NAME]
            return cursor
        return _UNKNOWN

    async def is_stuck(self) -> bool:
        """Return whether the broker has stopped delivering a partition, or lost chunks that it counts as delivered.

        It may wait to redeliver messages that nobody reads, as on a Shared subscription with only a last chunk. Or it
        had chosen a consumer for chunks that was gone when it sent them, so that no consumer of the subscription has
        them.
        """
        looks = zip(await self._stuck(), await self._stuck(), strict=True)  # both times: else it is on its way
        return any(map(all, looks))

    async def _stuck(self) -> list[bool]:
        """Return each possible sign that a partition is stuck."""
        waiting = map(_waits_in_vain, await self.cursors())
        return [*waiting, *[await asyncio.to_thread(self._has_lost, name) for name in self.names]]

    def _has_lost(self, name: str) -> bool:
        """Return whether the broker has lost messages, or counts as unacknowledged what no consumer has."""
        with suppress(AdminError, KeyError):
            found = self.admin.subscription(name, NAME)
            held = sum(each["unackedMessages"] for each in found["consumers"])
            return bool(found["unackedMessages"] > held) or has_forgotten(found)
        return False

    async def stored(self, wanted: AbstractSet[MessageId | None]) -> set[MessageId]:
        """Read the whole topic; return the ids once the wanted ones are among them."""
        found: set[MessageId] = set()
        if wanted:
            async with Client(self._url) as client, client.subscribe(self._topic, READER) as reader:
                with suppress(TimeoutError):
                    while not wanted <= found:
                        found.add((await reader.receive(patience(3))).id)
        return found


def has_forgotten(subscription: dict[str, Any]) -> bool:
    """Return whether a broker has a backlog that it neither sent nor will send, although consumers have permits.

    Seen on 4.0.7 after all consumers of a subscription lost their connections at once. An unload brings the backlog
    back.
    """
    in_vain = subscription["msgBacklog"] and not subscription["unackedMessages"] and not subscription.get("msgInReplay")
    consumers = subscription["consumers"]
    return bool(in_vain and consumers and all(each["availablePermits"] > 0 for each in consumers))


def _waits_in_vain(cursor: dict[str, Any]) -> bool:
    return bool(cursor.get("subscriptionHavePendingReplayRead")) and not cursor["pendingReadOps"]
