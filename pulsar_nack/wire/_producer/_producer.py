"""A client's producer: of a topic, with whatever partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from ..._delays import Delay
from ..._lifetime import ClosesWhenDropped, check_loop
from ...errors import AlreadyEnteredError, BrokerError, ClosedError, WouldBlockError
from ...ids import MessageId
from .._connection._core import Core
from .._connection._refusals import as_text, told
from .._connection._together import each_tried
from .._protocol._compression import require_compression
from .._protocol._topics import partition_name
from ._options import ProducerOptions
from ._outgoing import Outgoing
from ._pending_room import PendingRoom
from ._routing import Routing
from ._topic_producer import TopicProducer

_LOOK_AGAIN_S: Final = 60.0
"""How often is looked for new partitions."""

_LOG: Final = logging.getLogger("pulsar_nack.wire")


class Producer(ClosesWhenDropped):
    """Sends messages to a topic. Get it from :meth:`Client.producer`; close it, or use it as ``async with``.

    Use it in the client's event loop. If you drop it without closing it, it warns (:class:`ResourceWarning`), sends
    the messages that it has, and closes itself.

    Messages are confirmed in the order in which they were sent to a partition. When a connection breaks, what is not
    confirmed is sent again: it may then be stored twice, unless deduplication is on at the broker. Of a message in
    chunks all of them are sent again. What fails while it connects again, credentials too, is tried again at longer and
    longer intervals; ``send_timeout`` bounds how long a message waits for that.
    """

    def __init__(self, core: Core, topic: str, options: ProducerOptions) -> None:
        self.topic = topic
        self._core = core
        self._options = options
        self._routing = Routing(options.routing, options.hashing)
        self._room = PendingRoom(options.max_pending_messages, options.max_pending_bytes)
        self._producers: list[TopicProducer] = []
        self._growing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, core: Core, topic: str, options: ProducerOptions) -> Self:
        """Connect to the brokers of all partitions.

        :param topic: the full name
        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: it cannot be reached
        :raises MissingExtraError: what its compression needs is not installed
        """
        require_compression(options.compression_type)
        self = cls(core, topic, options)
        ends_at = core.deadline()
        try:
            partitions = await core.patiently(lambda: core.lookup.partitions(topic), ends_at=ends_at)
        except BrokerError as error:
            raise told(f"producing to {topic}", error) from error
        names = [partition_name(topic, number) for number in range(partitions)] if partitions else [topic]
        self._producers = await self._opened(names, ends_at)
        if partitions:
            self._growing = core.loop.create_task(self._grow(), name=f"pulsar_nack.wire partitions of {topic}")
        self._inner = self
        return self._twin()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._closing else f"{self._room.messages} messages unconfirmed"
        return f"<Producer of {self.topic} as {self.name!r}, {state}>"

    @property
    def name(self) -> str:
        """Return its name, which the broker made up unless it was given; of the first partition's producer."""
        return self._producers[0].name if self._producers else self._options.name or ""

    @property
    def is_connected(self) -> bool:
        """Return whether the brokers of all partitions know it now."""
        return all(producer.is_connected for producer in self._producers)

    @property
    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message that was confirmed, of whichever partition; -1: none."""
        return max((producer.last_sequence_id for producer in self._producers), default=-1)

    @property
    def failed_attempts(self) -> int:
        """Return how often it could not connect again to the broker of a partition, each try counted."""
        return sum(producer.failed_attempts for producer in self._producers)

    @property
    def pending(self) -> int:
        """Return how many messages are not confirmed."""
        return self._room.messages

    # --- sending ---------------------------------------------------------------------------------------------------

    async def send(
        self,
        data: bytes | bytearray | memoryview | None,
        *,
        properties: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_time_ms: int = 0,
        deliver_at_ms: int | None = None,
        deliver_after: Delay | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] | None = None,
    ) -> MessageId:
        """Send a message; returns its id when the broker has stored it. Waits while there is no room for it.

        A call that is cancelled may have sent the message all the same.

        :param data: the payload; None: the message says that there is no value for its key
        :param properties: as the application wants
        :param key: decides on the partition, the order on Key_Shared, and what compaction keeps; bytes are encoded
        :param ordering_key: decides on the order on Key_Shared instead of ``key``
        :param event_time_ms: what the application means by it, epoch ms
        :param deliver_at_ms: hold it back on Shared and Key_Shared subscriptions until then, epoch ms
        :param deliver_after: the same, in seconds from now
        :param sequence_id: above that of the message before it in this partition, unless that one failed; a producer
            may begin with what an earlier one of its name has sent. None: the next one
        :param replicate_to: names of clusters; None: as the namespace has it
        :return: of which ledger and entry are -1 if the broker has had a message of this sequence id already
        :raises InvalidArgumentError: names the argument; or the message is too large
        :raises BrokerRefusedError: the broker said no
        :raises RequestTimeoutError: not confirmed within ``send_timeout``; it may be stored all the same
        :raises BrokerError: the broker's answers do not say whether it is stored
        :raises ClosedError: it is closed, also before the message was confirmed; or it does not connect any more
        """
        message = Outgoing(
            data,
            properties=properties,
            key=key,
            ordering_key=ordering_key,
            event_time_ms=event_time_ms,
            deliver_at_ms=deliver_at_ms,
            deliver_after=deliver_after,
            sequence_id=sequence_id,
            replicate_to=replicate_to,
        )
        self._check_open()
        if not self._room.take_nowait(message.size):
            await self._room.take(message.size)
        return await self._enqueue(message)

    def send_nowait(self, data: bytes | bytearray | memoryview | None, **about: Any) -> asyncio.Future[MessageId]:
        """Begin to send a message; return a future that gets what :meth:`send` returns or raises.

        :param about: the other parameters of :meth:`send`
        :raises InvalidArgumentError: names the argument; or the message is too large
        :raises WouldBlockError: there is no room; nothing is sent
        :raises BrokerRefusedError: the broker does not take any for good
        :raises ClosedError: it is closed
        """
        message = Outgoing(data, **about)
        self._check_open()
        if not self._room.take_nowait(message.size):
            raise WouldBlockError("the producer", wanted=1, room=max(self._room.max_messages - self._room.messages, 0))
        return self._enqueue(message)

    def _enqueue(self, message: Outgoing) -> asyncio.Future[MessageId]:
        """Hand a message that there is room for to the producer of a partition."""
        receipt: asyncio.Future[MessageId] = self._core.loop.create_future()
        message.receipt = receipt
        try:
            self._check_open()
            producer = self._chosen(message)
            producer.check_open()
            producer.send(message)
        except BaseException:
            self._room.give_back(message.size)
            raise
        return receipt

    def _chosen(self, message: Outgoing) -> TopicProducer:
        producers = self._producers
        if len(producers) == 1:
            return producers[0]
        stays = self._is_filling if self._options.batching else _never
        return producers[self._routing.partition(message.key, len(producers), stays=stays)]

    def _is_filling(self, partition: int) -> bool:
        return self._producers[partition].is_filling

    def _on_done(self, message: Outgoing) -> None:
        self._room.give_back(message.size)

    async def flush(self) -> None:
        """Send what waits in batches, and return when all that was sent before is confirmed or has failed.

        That includes calls of :meth:`send` that wait for room; each of them returns, or raises, for its own message.
        """
        check_loop(self._core.loop, "the producer")
        for turn in self._room.waiting():
            if not turn.done():
                self._send_batches()
                await asyncio.wait([turn])
        self._send_batches()
        await asyncio.gather(*(producer.flush() for producer in self._producers))

    def _send_batches(self) -> None:
        for producer in self._producers:
            producer.send_batches()

    # --- partitions ------------------------------------------------------------------------------------------------

    async def _opened(self, names: Sequence[str], ends_at: float | None = None) -> list[TopicProducer]:
        """Return producers that are connected, or close all and raise what is wrong with one."""
        made = [TopicProducer(self._core, name, self._options, self._on_done) for name in names]
        try:
            async with asyncio.TaskGroup() as group:
                for each in made:
                    group.create_task(_open(each, ends_at), name=f"pulsar_nack.wire producing to {each.topic}")
        except BaseException as error:
            await each_tried(each.aclose() for each in made)  # whoever cancels may do so again
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        return made

    async def _grow(self) -> None:
        """Produce to partitions that are added."""
        last_error = ""
        while not self._core.pool.is_closed:
            await asyncio.sleep(_LOOK_AGAIN_S)
            known = len(self._producers)
            try:
                partitions = await self._core.lookup.partitions(self.topic)
                names = [partition_name(self.topic, number) for number in range(known, partitions)]
                self._producers += await self._opened(names)
                last_error = ""
            except Exception as error:  # noqa: BLE001 - also what an authentication of the user's raises
                if last_error != (last_error := repr(error)):
                    _LOG.warning("cannot look for new partitions of %s: %s", self.topic, as_text(error))

    # --- closing ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Send all queued messages, wait for their receipts, a few seconds at most, and close. Idempotent, in any loop.


        :raises WrongLoopError: called in another event loop than the client's; all methods raise this
        """
        if self._closing is None or not self._closing.done():
            check_loop(self._core.loop, "the producer")
        await asyncio.shield(self._begin_close())

    async def close(self) -> None:
        """Close it; the same as :meth:`aclose`."""
        await self.aclose()

    def _begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._room.close(ClosedError("the producer"))
            closing = (self._inner or self)._close()
            self._closing = self._core.loop.create_task(closing, name=f"pulsar_nack.wire closing {self.topic}")
        return self._closing

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        return None if self._closing is not None or self._core.pool.is_closed else self._core.loop

    async def _close(self) -> None:
        if self._growing is not None:
            self._growing.cancel()
            await asyncio.wait([self._growing])
        await asyncio.gather(*(producer.aclose() for producer in self._producers))

    def _check_open(self) -> None:
        check_loop(self._core.loop, "the producer")
        if self._closing is not None:
            raise ClosedError("the producer")


async def _open(producer: TopicProducer, ends_at: float | None) -> None:
    try:
        await producer.open(ends_at)
    except BrokerError as error:
        raise told(f"producing to {producer.topic}", error) from error


def _never(_: int) -> bool:
    return False


class Producing:
    """What :meth:`Client.producer` returns: ``async with`` it, or ``await`` it and close the producer yourself."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Producer]]) -> None:
        self._make = make
        self._producer: Producer | None = None
        self._is_entered = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"no {name!r} yet: enter it with `async with`, or await it, to have the producer", name=name
        )

    def __await__(self) -> Generator[Any, None, Producer]:
        return self._make().__await__()

    async def __aenter__(self) -> Producer:
        if self._is_entered:
            raise AlreadyEnteredError("the producer")  # leaving would close the later one twice, and not this
        self._is_entered = True
        try:
            self._producer = await self._make()
        except BaseException:
            self._is_entered = False
            raise
        return self._producer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        producer, self._producer, self._is_entered = self._producer, None, False
        if producer is not None:
            await producer.aclose()
