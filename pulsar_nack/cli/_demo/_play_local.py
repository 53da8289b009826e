"""The demo on a local topic: single messages, batches and delayed ones, each fails once; a restart in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ... import Message
from ._journal import LONGEST, Journal, delays
from ._local import LocalStage
from ._play import LINGER, PATIENCE, Script, Watch, look
from ._stage import OURS

DELAYED: Final = "delayed delivery"
_BATCH: Final = 3
_BATCH_AT: Final = 5  # of each ten messages
_DELAYED_AT: Final = frozenset({4, 9})


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is published at once: one message, which may be for later, or a batch."""

    numbers: range
    is_batch: bool = False
    is_delayed: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """The restart in the middle: when, for how long, and how many messages waited meanwhile.

    :param nacked: for the deadlines of their nacks
    :param delayed: for the times that they were published for
    """

    at_s: float
    took_ms: float
    nacked: int
    delayed: int


def parcels(messages: int) -> Iterator[Parcel]:
    """Go through what is published: of ten messages three are a batch, and two are for later."""
    number = 0
    while number < messages:
        place = number % 10
        size = min(_BATCH, messages - number) if place == _BATCH_AT else 1
        yield Parcel(
            range(number, number + size), is_batch=place == _BATCH_AT, is_delayed=size == 1 and place in _DELAYED_AT
        )
        number += size


class LocalPlay:
    """One run of it.

    :param watch: is shown the journals ten times a second
    """

    def __init__(self, stage: LocalStage, script: Script, watch: Watch) -> None:
        self._stage = stage
        self._script = script
        self._watch = watch
        self._parcels = list(parcels(script.messages))
        self._nacks = delays(script.messages, script.seed)
        self._holds = delays(script.messages, script.seed + 1)
        self._ours = Journal(OURS, script.messages)
        self._delayed = Journal(DELAYED, sum(parcel.is_delayed for parcel in self._parcels))
        self._now = asyncio.get_running_loop().time
        self._start = self._now()
        self.restart: Restart | None = None
        """The restart, as soon as it was."""

    @property
    def journals(self) -> list[Journal]:
        """Return what happened to nacked messages, and to delayed ones if there are any."""
        return [self._ours, self._delayed] if self._delayed.expected else [self._ours]

    async def run(self) -> list[Journal]:
        """Play it; return the journals, that of the nacks first."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._fail()), group.create_task(look(self._watch, self.journals))]
            await self._send()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * LONGEST + PATIENCE):
                    for journal in self.journals:
                        await journal.all_back.wait()
            await asyncio.sleep(LINGER)
            for task in tasks:
                task.cancel()
        self._watch(self.journals)
        return self.journals

    async def _send(self) -> None:
        """Send the messages at even intervals; a batch when its last message is due."""
        interval = self._script.seconds / max(self._script.messages - 1, 1)
        for parcel in self._parcels:
            await asyncio.sleep(self._start + interval * parcel.numbers[-1] - self._now())
            if parcel.is_delayed:
                await self._send_for_later(parcel.numbers[0])
            else:
                await self._stage.publish(_payloads(parcel.numbers), batch=parcel.is_batch)

    async def _send_for_later(self, number: int) -> None:
        async with self._stage.topic() as topic:
            self._delayed.failed(number, self._holds[number], self._now())
            await topic.publish(_payloads([number]), deliver_after=self._holds[number])

    async def _fail(self) -> None:
        """Nack each message once; in the middle, between two of them, close everything and open it again."""
        middle = self._start + self._script.seconds / 2
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
        self._ours.failed(number, self._nacks[number], self._now())
        await message.nack(delay=self._nacks[number])

    async def _restart(self) -> None:
        nacked, delayed = self._ours.waiting, self._delayed.waiting
        began = self._now()
        await self._stage.restart()
        took_ms = round((self._now() - began) * 1000, 1)
        self.restart = Restart(round(began - self._start, 3), took_ms, nacked, delayed)


def _payloads(numbers: Sequence[int]) -> list[bytes]:
    return [str(number).encode() for number in numbers]
