"""Local topics on files in memory, for users' tests: a broker that stores and redelivers, and fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from .._check import check_clock, check_config, check_integer, check_kind
from .._lifetime import ClosesOnExit
from ..clock import Clock, LoopClock
from ..config import DelayedDeliveryConfig, TopicConfig
from ..consumer import Consumer, ConsumerPort, Subscribing
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
        self.entries = EntryFaults()
        self._stores: list[_FaultyStore] = []
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
        store = await _FaultyStore.open(folder, files=self.files, threads=2)
        store.faults = self.entries
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

        async def connect() -> LocalPort:
            opened = await self.topic(topic)
            return await opened.subscribe(
                subscription, subscription_type, **{"initial_position": "earliest", **options}
            )

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
        for_port = {name: options.pop(name) for name in _PORT_OPTIONS if name in options}

        settings = {"wall_clock": self._clock, **options} if "retry_topic" in options else options

        async def connect() -> ConsumerPort:
            opened = await self.topic(topic)
            port = await opened.subscribe(
                subscription, subscription_type, **{"initial_position": "earliest", **for_port}
            )
            try:
                if settings.get("retry_topic") is not None:
                    settings["retry_topic"] = await opened.retry_topics.join(port, settings["retry_topic"])
            except BaseException:
                await port.close()
                raise
            return port

        async def make() -> Consumer:
            port = FaultyPort(await connect(), connect)
            try:
                return Consumer(port, **settings)
            except BaseException:
                await port.close()
                raise

        return Subscribing(make)

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail_reads(self, times: int = 1) -> None:
        """Let the next reads of entries from storage fail; newly published entries are in memory and need none."""
        self.entries.fail("read", times)

    def delay_reads(self, delay: float) -> None:
        """Delay each read of entries from storage by ``delay`` seconds from now on."""
        self.entries.delay(delay)

    def fail_publishing(self, times: int = 1) -> None:
        """Let the next writes of entries fail, with all messages that each of them contains."""
        self.entries.fail("append", times)

    def heal(self) -> None:
        """Remove all faults."""
        self.entries.heal()
        self.files.heal()

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


class EntryFaults:
    """Faults of the next reads and appends of a topic's entries; everything else works."""

    def __init__(self) -> None:
        self.reads = 0
        """How often entries were read."""
        self.entries_read = 0
        self._delay = 0.0
        self._failures = {"read": 0, "append": 0}

    def fail(self, call: str, times: int) -> None:
        """Let the next calls of one kind fail."""
        self._failures[call] += check_integer("times", times, 1)

    def delay(self, delay: float) -> None:
        """Delay each read by ``delay`` seconds from now on."""
        self._delay = seconds("delay", delay)

    def heal(self) -> None:
        """Remove all faults and delays."""
        self._delay = 0.0
        self._failures = dict.fromkeys(self._failures, 0)

    async def before_read(self, log: str, entries: int) -> None:
        """Delay a read, or raise, as ordered."""
        self.reads += 1
        self.entries_read += entries
        if self._delay:
            await asyncio.sleep(self._delay)
        self._check("read", log)

    def before_append(self, log: str) -> None:
        """Raise for an append, as ordered."""
        self._check("append", log)

    def _check(self, call: str, log: str) -> None:
        if self._failures[call]:
            self._failures[call] -= 1
            raise LogStorageError(log, call, "the test asked for it")


class _FaultyStore(LocalLogStore):
    """A store in a folder whose ledgers have faults."""

    faults: EntryFaults

    def _make_log(self, opened: Any) -> LocalLog:
        if not opened.name.startswith(_LEDGER):
            return super()._make_log(opened)
        log = _FaultyLog(self._directory, opened, self._executor)
        log.faults = self.faults
        return log


class _FaultyLog(LocalLog):
    faults: EntryFaults

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        self.faults.before_append(self.name)
        return await super().append_many(records)

    async def read(self, first: int, last: int) -> list[bytes]:
        await self.faults.before_read(self.name, last - first + 1)
        return await super().read(first, last)
