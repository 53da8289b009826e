"""Local topics on files in memory, for users' tests: a broker that stores and redelivers, and fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Final

from .._check import check_clock, check_config, check_integer, check_kind
from .._lifetime import ClosesOnExit
from ..clock import Clock, LoopClock
from ..config import DelayedDeliveryConfig, TopicConfig
from ..consumer import Consumer, Subscribing
from ..consumer.transport import AnyType
from ..errors import ClosedError, LogStorageError
from ..ledger import LocalLog, LocalLogStore
from ..ledger.faults import FaultyFiles
from ..ledger.memory import MemoryFiles
from ..topic import LocalPort, LocalTopic
from ._call_faults import seconds
from ._faulty_port import FaultyPort

_LEDGER: Final = "ledger-"
_TOPIC: Final = "persistent://public/default/local"
_PORT_OPTIONS: Final = (
    "consumer_name",
    "initial_position",
    "delayed",
    "receiver_queue_size",
    "unacked_limit",
    "batch_index_ack",
)


class LocalBroker(ClosesOnExit):
    """Local topics whose files are in memory; create and use it inside a running loop.

    Times are those of the loop, so that it runs on virtual time; epoch ms are ms of the loop then.

    :param config: settings of the topics
    :param delayed: how the topics keep delayed messages
    :param clock: epoch ms; by default the loop's clock
    :param seed: decides what a power cut leaves of unsynced writes

    ::

        @virtual_time
        async def test_it_survives() -> None:
            async with LocalBroker() as broker:
                topic = await broker.topic()
                await topic.create_subscription("billing")
                await topic.publish(b"an order")
                await broker.restart(power_cut=True)
                async with broker.consumer("billing") as consumer:
                    await (await consumer.receive()).ack()
    """

    def __init__(
        self,
        config: TopicConfig | None = None,
        *,
        delayed: DelayedDeliveryConfig | None = None,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        check_config(config, TopicConfig)
        check_config(delayed, DelayedDeliveryConfig, "delayed")
        check_clock(clock)
        check_kind("seed", seed, int, "an int")
        self._config = config
        self._delayed = delayed
        self._clock = LoopClock() if clock is None else clock
        self.files = FaultyFiles(MemoryFiles(Random(seed)))  # noqa: S311
        """The disk, with faults on demand, see :class:`FaultyFiles`; another object after a restart."""
        self.entries_read = 0
        """How many entries were read from storage."""
        self._read_delay = 0.0
        self._failing = {"read": 0, "append": 0}
        self._stores: list[LocalLogStore] = []
        self._topics: dict[str, LocalTopic] = {}
        self._changing = asyncio.Lock()
        self._is_closed = False

    async def topic(self, name: str = _TOPIC) -> LocalTopic:
        """Return a topic, opening it if necessary; after a restart it is a new object."""
        async with self._changing:
            if self._is_closed:
                raise ClosedError("LocalBroker")
            if name not in self._topics:
                self._topics[name] = await self._open(name)
            return self._topics[name]

    async def _open(self, name: str, first_ledger: int = 1) -> LocalTopic:
        folder = f"/{name.encode().hex()}"
        store = await LocalLogStore.open(folder, files=self.files, threads=2)
        store._log_type = partial(_FaultyLog, self)
        self._stores.append(store)
        about: dict[str, Any] = {"delayed": self._delayed, "clock": self._clock, "first_ledger": first_ledger}
        opened = await LocalTopic.open(store, self._config, name=name, **about)
        opened.retry_topics.opener = lambda _, name, first_ledger: self._open(name, first_ledger)
        return opened

    async def subscribe(
        self,
        subscription: str,
        subscription_type: AnyType = "shared",
        *,
        topic: str = _TOPIC,
        **options: Any,
    ) -> FaultyPort:
        """Subscribe to a topic; a new subscription begins with the first message.

        :param options: those of :meth:`~pulsar_nack.LocalTopic.subscribe`
        """
        connect = partial(self._connect, topic, subscription, subscription_type, options, {})
        return FaultyPort(await connect(), connect)

    def consumer(
        self,
        subscription: str,
        subscription_type: AnyType = "shared",
        *,
        topic: str = _TOPIC,
        **options: Any,
    ) -> Subscribing:
        """Subscribe with a :class:`~pulsar_nack.Consumer`, whose ``port`` is a :class:`FaultyPort`.

        :param options: those of :meth:`~pulsar_nack.LocalTopic.subscribe`, and those of the consumer
        """
        for_port: dict[str, Any] = {name: options.pop(name) for name in _PORT_OPTIONS if name in options}
        settings = {"wall_clock": self._clock, **options} if "retry_topic" in options else options
        connect = partial(self._connect, topic, subscription, subscription_type, for_port, settings)

        async def make() -> Consumer:
            port = FaultyPort(await connect(), connect)
            try:
                return Consumer(port, **settings)
            except BaseException:
                await port.close()
                raise

        return Subscribing(make, "consumer")

    async def _connect(
        self, topic: str, subscription: str, kind: AnyType, options: dict[str, Any], settings: dict[str, Any]
    ) -> LocalPort:
        """Subscribe to a topic, and to the retry topic of a consumer with these settings."""
        opened = await self.topic(topic)
        port = await opened.subscribe(subscription, kind, **{"initial_position": "earliest", **options})
        try:
            if settings.get("retry_topic") is not None:
                settings["retry_topic"] = await opened.retry_topics.join(port, settings["retry_topic"])
        except BaseException:
            await port.close()
            raise
        return port

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail_reads(self, times: int = 1) -> None:
        """Let the next reads of entries from storage fail; newly published entries are in memory and need none."""
        self._failing["read"] += check_integer("times", times, 1)

    def delay_reads(self, delay: float) -> None:
        """Delay each read of entries from storage by ``delay`` seconds from now on."""
        self._read_delay = seconds("delay", delay)

    def fail_publishing(self, times: int = 1) -> None:
        """Let the next writes of entries fail, with all messages that each of them contains."""
        self._failing["append"] += check_integer("times", times, 1)

    def heal(self) -> None:
        """Remove all faults."""
        self._read_delay = 0.0
        self._failing = dict.fromkeys(self._failing, 0)
        self.files.heal()

    async def _before_read(self, log: str, entries: int) -> None:
        self.entries_read += entries
        if self._read_delay:
            await asyncio.sleep(self._read_delay)
        self._fail_if_ordered(log, "read")

    def _fail_if_ordered(self, log: str, operation: str) -> None:
        if self._failing[operation]:
            self._failing[operation] -= 1
            raise LogStorageError(log, operation, "the test asked for it")

    async def restart(self, *, kill: bool = False, power_cut: bool = False) -> None:
        """Restart the broker: ports are closed, counts are forgotten, and topics have to be fetched again.

        :param kill: the process ends as by kill -9, and writes nothing more
        :param power_cut: the machine ends, so that any unsynced data may be lost
        """
        async with self._changing:
            memory = self.files.inner
            assert isinstance(memory, MemoryFiles)
            found = memory.after_crash() if power_cut else memory.fork() if kill else None
            await self._close_topics()  # closing writes to the files from before the restart
            self.files = FaultyFiles(memory.after_kill() if found is None else found)

    async def aclose(self) -> None:
        """Close the topics. Idempotent."""
        async with self._changing:
            self._is_closed = True
            await self._close_topics()

    async def _close_topics(self) -> None:
        topics, self._topics = self._topics, {}
        stores, self._stores = self._stores, []
        for topic in topics.values():
            await topic.aclose()
        for store in stores:
            await store.aclose()


# --- storage whose entries fail -------------------------------------------------------------------------------------


class _FaultyLog(LocalLog):
    """A log of a topic; if it is a ledger, it has the faults that are ordered from a broker."""

    def __init__(self, broker: LocalBroker, *opened: Any) -> None:
        super().__init__(*opened)
        self._broker = broker
        self._is_ledger = self.name.startswith(_LEDGER)

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        if self._is_ledger:
            self._broker._fail_if_ordered(self.name, "append")
        return await super().append_many(records)

    async def read(self, first: int, last: int) -> list[bytes]:
        if self._is_ledger:
            await self._broker._before_read(self.name, last - first + 1)
        return await super().read(first, last)
