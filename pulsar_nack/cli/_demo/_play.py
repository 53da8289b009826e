"""The demo's run: messages keep arriving, each fails once, and a journal notes when it comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ... import Consumer, Message
from ._figures import LONGEST, Journal, delays
from ._stage import OFFICIAL_DELAY, OURS, LocalStage, Stage

OFFICIAL: Final = "official client"
DELAYED: Final = "delayed delivery"
_PATIENCE: Final = 10.0  # seconds after the last deadline until a message that is not back counts as missing
_LINGER: Final = 0.5  # seconds for duplicates to show up
_PROGRESS_INTERVAL: Final = 0.1
_BATCH: Final = 3
_BATCH_AT: Final = 5  # of each ten messages
_DELAYED_AT: Final = frozenset({4, 9})

Watch = Callable[[Sequence[Journal]], None]


@dataclass(frozen=True, slots=True)
class Load:
    """How many messages are sent.

    :param seconds: from the first message to the last
    :param seed: chooses the delays
    """

    messages: int
    seconds: float
    seed: int


async def play(stage: Stage, load: Load, watch: Watch) -> list[Journal]:
    """Run the demo on a broker; return the journal of each consumer, the official client's first.

    :param watch: called with the journals ten times a second
    """
    journals: list[Journal] = []
    work: list[Coroutine[Any, Any, None]] = []
    asked = delays(load.messages, load.seed)
    if stage.official is not None:
        journals.append(Journal(OFFICIAL, load.messages))
        work.append(_fail_official(stage.official, journals[-1]))
    for name, consumer in stage.consumers.items():
        journals.append(Journal(name, load.messages))
        work.append(_fail_ours(consumer, journals[-1], asked))
    await _perform(journals, work, _send(stage, load), watch, LONGEST + _PATIENCE)
    return journals


async def _perform(
    journals: Sequence[Journal],
    work: Sequence[Coroutine[Any, Any, None]],
    sending: Coroutine[Any, Any, None],
    watch: Watch,
    patience: float,
) -> None:
    """Send the messages while ``work`` handles them, until all are back or for at most ``patience`` seconds more."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in (*work, _report_progress(watch, journals))]
        await sending
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                for journal in journals:
                    await journal.all_back.wait()
        await asyncio.sleep(_LINGER)
        for task in tasks:
            task.cancel()
    watch(journals)


async def _send(stage: Stage, load: Load) -> None:
    """Send the messages at even intervals, however long each takes."""
    now = asyncio.get_running_loop().time
    start = now()
    for number in range(load.messages):
        await asyncio.sleep(start + load.seconds * number / max(load.messages - 1, 1) - now())
        await stage.publish(str(number).encode())


async def _fail_ours(consumer: Consumer, journal: Journal, asked: Sequence[float]) -> None:
    now = asyncio.get_running_loop().time
    async for message in consumer:
        number = int(message.data)
        if journal.knows(number):
            journal.came_back(number, now())
            await message.ack()
        else:
            journal.failed(number, asked[number], now())
            await message.nack(delay=asked[number])


async def _fail_official(consumer: Any, journal: Journal) -> None:
    now = asyncio.get_running_loop().time
    while True:
        message = await consumer.receive()
        number = int(message.data())
        if journal.knows(number):
            journal.came_back(number, now())
            await consumer.acknowledge(message)
        else:
            journal.failed(number, OFFICIAL_DELAY, now())
            await consumer.negative_acknowledge(message)


async def _report_progress(watch: Watch, journals: Sequence[Journal]) -> None:
    while True:
        watch(journals)
        await asyncio.sleep(_PROGRESS_INTERVAL)


# --- on a local topic -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publication:
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


class LocalPlay:
    """A run of the demo on a local topic: messages, batches and delayed messages, and a restart in the middle.

    :param watch: called with the journals ten times a second
    """

    def __init__(self, stage: LocalStage, load: Load, watch: Watch) -> None:
        self._stage = stage
        self._load = load
        self._watch = watch
        self._publications = list(publications(load.messages))
        self._nack_delays = delays(load.messages, load.seed)
        self._publish_delays = delays(load.messages, load.seed + 1)
        self._ours = Journal(OURS, load.messages)
        self._delayed = Journal(DELAYED, sum(each.is_delayed for each in self._publications))
        self._now = asyncio.get_running_loop().time
        self._start = self._now()
        self.restart: Restart | None = None

    @property
    def journals(self) -> list[Journal]:
        """Return the journal of the nacked messages, and that of the delayed ones if there are any."""
        return [self._ours, self._delayed] if self._delayed.expected else [self._ours]

    async def run(self) -> list[Journal]:
        """Run the demo; return the journals, that of the nacks first."""
        await _perform(self.journals, [self._fail()], self._send(), self._watch, 2 * LONGEST + _PATIENCE)
        return self.journals

    async def _send(self) -> None:
        """Send the messages at even intervals; a batch when its last message is due."""
        interval = self._load.seconds / max(self._load.messages - 1, 1)
        for each in self._publications:
            await asyncio.sleep(self._start + interval * each.numbers[-1] - self._now())
            if each.is_delayed:
                await self._send_delayed(each.numbers[0])
            else:
                await self._stage.publish(_payloads(each.numbers), batch=each.is_batch)

    async def _send_delayed(self, number: int) -> None:
        async with self._stage.topic() as topic:
            self._delayed.failed(number, self._publish_delays[number], self._now())
            await topic.publish(_payloads([number]), deliver_after=self._publish_delays[number])

    async def _fail(self) -> None:
        """Nack each message once; in the middle, between two messages, close everything and open it again."""
        middle = self._start + self._load.seconds / 2
        while (left := middle - self._now()) > 0:
            try:
                message = await self._stage.consumer.receive(timeout=left)
            except TimeoutError:
                break
            await self._handle(message)
        await self._restart()
        while True:
            await self._handle(await self._stage.consumer.receive())

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
        await self._stage.restart()
        took_ms = round((self._now() - began) * 1000, 1)
        self.restart = Restart(round(began - self._start, 3), took_ms, nacked, delayed)


def _payloads(numbers: Sequence[int]) -> list[bytes]:
    return [str(number).encode() for number in numbers]
