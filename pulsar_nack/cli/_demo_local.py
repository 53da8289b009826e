"""The demo on a local topic: messages, batches and delayed messages, and a restart in the middle of the run."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from .. import Consumer, DelayedDeliveryConfig, LocalTopic, Message, NackConfig
from ..clock import LoopClock
from ._demo_figures import LONGEST, Journal, delays
from ._demo_play import OURS, PATIENCE, Load, Watch, perform

LOCAL_BROKER: Final = "local topic, in a folder"
DELAYED: Final = "delayed delivery"
_SUBSCRIPTION: Final = "pulsar-nack"
_TICK_1_MS: Final = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1)
_BATCH: Final = 3
_BATCH_AT: Final = 5  # of each ten messages
_DELAYED_AT: Final = frozenset({4, 9})


class Publication(NamedTuple):
    """The messages of one call of ``publish``: a message, which may be delayed, or a batch."""

    numbers: range
    is_batch: bool = False
    is_delayed: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """The restart in the middle of the run.

    :param nacked: how many nacked messages were waiting
    :param delayed: how many delayed messages were waiting
    """

    at_s: float
    took_ms: float
    nacked: int
    delayed: int


def publications(messages: int) -> Iterator[Publication]:
    """Yield what is published: of ten messages three are a batch, and two are delayed."""
    number = 0
    while number < messages:
        place = number % 10
        size = min(_BATCH, messages - number) if place == _BATCH_AT else 1
        yield Publication(
            range(number, number + size), is_batch=place == _BATCH_AT, is_delayed=size == 1 and place in _DELAYED_AT
        )
        number += size


class LocalDemo:
    """A local topic and its only consumer, whose nacks are durable, and a run of the demo on them.

    :param folder: where both store their state
    :param watch: called with the journals ten times a second
    """

    def __init__(self, folder: Path, config: NackConfig, load: Load, watch: Watch) -> None:
        self._folder = folder
        self._config = config
        self._load = load
        self._watch = watch
        self._publications = list(publications(load.messages))
        self._nack_delays = delays(load.messages, load.seed)
        self._publish_delays = delays(load.messages, load.seed + 1)
        self._ours = Journal(OURS, load.messages)
        self._delayed = Journal(DELAYED, sum(each.is_delayed for each in self._publications))
        self._now = asyncio.get_running_loop().time
        self._start = self._now()
        self._reopening = asyncio.Lock()
        self._topic: LocalTopic | None = None
        self._consumer: Consumer | None = None
        self.restart: Restart | None = None

    @property
    def journals(self) -> list[Journal]:
        """Return the journal of the nacked messages, and that of the delayed ones if there are any."""
        return [self._ours, self._delayed] if self._delayed.expected else [self._ours]

    async def run(self) -> None:
        """Run the demo."""
        self._start = self._now()
        await perform(self.journals, [self._fail()], self._send(), self._watch, 2 * LONGEST + PATIENCE)

    # --- topic and consumer -------------------------------------------------------------------------------------------

    @property
    def consumer(self) -> Consumer:
        """Return the consumer; it is a new one after :meth:`reopen`."""
        assert self._consumer is not None
        return self._consumer

    @contextlib.asynccontextmanager
    async def topic(self) -> AsyncIterator[LocalTopic]:
        """Give the topic; it is not closed while the block runs."""
        async with self._reopening:
            assert self._topic is not None
            yield self._topic

    async def open(self) -> None:
        """Open topic and consumer with their stored state."""
        clock = LoopClock()
        self._topic = await LocalTopic.open(self._folder / "topic", delayed=_TICK_1_MS, clock=clock)
        durable = self._folder / "nacks"
        self._consumer = await self._topic.consumer(
            _SUBSCRIPTION, config=self._config, durable=durable, wall_clock=clock
        )

    async def aclose(self) -> None:
        """Close consumer and topic; their state stays in the folder."""
        consumer, self._consumer = self._consumer, None
        topic, self._topic = self._topic, None
        try:
            if consumer is not None:
                await consumer.aclose()
        finally:
            if topic is not None:
                await topic.aclose()

    async def reopen(self) -> None:
        """Close consumer and topic and open them again; meanwhile nothing is published."""
        async with self._reopening:
            await self.aclose()
            await self.open()

    # --- the run ------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Send the messages at even intervals; a batch when its last message is due."""
        interval = self._load.seconds / max(self._load.messages - 1, 1)
        for each in self._publications:
            await asyncio.sleep(self._start + interval * each.numbers[-1] - self._now())
            async with self.topic() as topic:
                if each.is_delayed:
                    number = each.numbers[0]
                    self._delayed.failed(number, self._publish_delays[number], self._now())
                    await topic.publish(_payloads(each.numbers), deliver_after=self._publish_delays[number])
                else:
                    await topic.publish(_payloads(each.numbers), batch=each.is_batch)

    async def _fail(self) -> None:
        """Nack each message once; in the middle, between two messages, close everything and open it again."""
        middle = self._start + self._load.seconds / 2
        while (left := middle - self._now()) > 0:
            try:
                message = await self.consumer.receive(timeout=left)
            except TimeoutError:
                break
            await self._handle(message)
        await self._restart()
        while True:
            await self._handle(await self.consumer.receive())

    async def _handle(self, message: Message) -> None:
        number = int(message.data)
        if self._ours.knows(number):
            self._ours.came_back(number, self._now())
            await message.ack()
            return
        if self._delayed.knows(number):
            self._delayed.came_back(number, self._now())
        self._ours.failed(number, self._nack_delays[number], self._now())
        await message.nack(delay=self._nack_delays[number])

    async def _restart(self) -> None:
        nacked, delayed = self._ours.waiting, self._delayed.waiting
        began = self._now()
        await self.reopen()
        took_ms = round((self._now() - began) * 1000, 1)
        self.restart = Restart(round(began - self._start, 3), took_ms, nacked, delayed)


def _payloads(numbers: Sequence[int]) -> list[bytes]:
    return [str(number).encode() for number in numbers]


@contextlib.asynccontextmanager
async def open_local(config: NackConfig, load: Load, watch: Watch) -> AsyncIterator[LocalDemo]:
    """Open a local topic in a temporary folder, and remove it at the end, whatever happens.

    :raises MissingExtraError: a package that local topics need is not installed
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True) as folder:
        demo = LocalDemo(Path(folder), config, load, watch)
        try:
            await demo.open()
            yield demo
        finally:
            await demo.aclose()
