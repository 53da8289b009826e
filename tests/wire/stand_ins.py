"""Members of a consumer of several topics, without a broker: they note what they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulsar_nack import BrokerError, Delivery, MessageId, Position
from pulsar_nack.consumer import AcksDone
from pulsar_nack.wire._consumer._deliveries import QueuedMessage
from pulsar_nack.wire._consumer._unread_entry import QueuedEntry, UnreadEntry
from pulsar_nack.wire._protocol._topics import namespace_of


class Ended(list[tuple[Any, Exception | None]]):
    """What acknowledgements ended with: their tokens and errors, in order; to be given as ``done``."""

    def __call__(self, tokens: Sequence[Any], error: Exception | None) -> None:
        self.extend((token, error) for token in tokens)


class FakeMember:
    """Stands for the consumer of one topic or partition.

    :param fails: the errors that its calls raise, by their names
    """

    def __init__(self, name: str, partition: int = -1, *, fails: Mapping[str, Exception] | None = None) -> None:
        self.name = self.topic = name
        self.partition = partition
        self.fails = dict(fails or {})
        self.queue = self
        self.epoch = 1
        self.is_connected = False
        self.is_active: bool | None = None
        self.has_ended = False
        self.missing = None
        self.calls: list[tuple[str, Any]] = []
        self.received: list[bytes] = []

    def delivery_of(self, item: QueuedMessage) -> Delivery:
        assert isinstance(item, Delivery)
        return item

    def taken(self, item: QueuedMessage) -> Delivery:
        item = self.delivery_of(item)
        self.received.append(item.data)
        return item

    def note_read(self, unread: UnreadEntry, messages: int, size: int) -> None:
        pass

    async def open(self, ends_at: float | None = None) -> None:
        await self._note("open")
        self.is_connected = True

    def check_open(self) -> None:
        if "check_open" in self.fails:
            raise self.fails["check_open"]

    async def aclose(self) -> None:
        await self._note("aclose")
        self.is_connected = False

    def on_topic_deleted(self) -> None:
        self.calls.append(("on_topic_deleted", None))

    async def unsubscribe(self, *, force: bool = False) -> None:
        await self._note("unsubscribe", *([force] if force else []))

    def acknowledge_soon(self, message_id: MessageId, token: Any, done: AcksDone[Any]) -> None:
        self.calls.append(("acknowledge_soon", message_id))
        asyncio.get_running_loop().call_soon(done, [token], self.fails.get("acknowledge_soon"))

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        await self._note("acknowledge", list(ids))

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        await self._note("acknowledge_cumulative", message_id)

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        self.calls.append(("redeliver", list(ids)))
        if "redeliver" in self.fails:
            raise self.fails["redeliver"]

    def fetch_one(self) -> None:
        self.calls.append(("fetch_one", None))

    def pause(self, queued: Sequence[QueuedEntry], *, is_idle: bool) -> None:
        self.calls.append(("pause", [each.id for each in queued]))

    def resume(self) -> None:
        self.calls.append(("resume", None))

    def give_back(self, ids: Iterable[MessageId]) -> None:
        self.calls.append(("give_back", list(ids)))

    async def seek(self, position: MessageId | int) -> None:
        await self._note("seek", position)

    async def held_back(self) -> str | None:
        await self._note("held_back")
        return None

    async def mark_delete_position(self) -> Position | None:
        """Tell nothing."""
        return None

    async def last_message_id(self) -> MessageId:
        await self._note("last_message_id")
        return MessageId(1, len(self.calls), self.partition, topic=self.name)

    async def _note(self, call: str, argument: Any = None) -> None:
        self.calls.append((call, argument))
        await asyncio.sleep(0)
        if call in self.fails:
            raise self.fails[call]


class FakeLookup:
    """Stands for a lookup: topics and how many partitions they have.

    :param topics: full names with numbers of partitions, 0 for none
    """

    def __init__(self, **topics: int) -> None:
        self.topics_by_name = {f"persistent://public/default/{name}": count for name, count in topics.items()}
        self.fails = False

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        await asyncio.sleep(0)
        if self.fails:
            raise BrokerError("no")
        return self.topics_by_name.get(topic, 0)

    async def topics(self, namespace: str, *, pattern: str | None = None, mode: str = "persistent") -> list[str]:
        await asyncio.sleep(0)
        if self.fails:
            raise BrokerError("no")
        return [
            member
            for name, count in self.topics_by_name.items()
            if namespace_of(name) == namespace and mode in {"persistent", "all"} and name.startswith("persistent:")
            for member in ([f"{name}-partition-{number}" for number in range(count)] or [name])
        ]
