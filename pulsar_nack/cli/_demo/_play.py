"""The demo itself: messages arrive all the time, each fails once, and a journal notes when it comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ... import Consumer
from ._journal import LONGEST, Journal, delays
from ._stage import OFFICIAL_DELAY, Stage

OFFICIAL: Final = "official client"
PATIENCE: Final = 10.0  # seconds after the last deadline until what is not back counts as missing
LINGER: Final = 0.5  # seconds in which a message that is shown once too often is still seen
_LOOK_INTERVAL: Final = 0.1

Watch = Callable[[Sequence[Journal]], None]


@dataclass(frozen=True, slots=True)
class Script:
    """How much is played, and for how long.

    :param seconds: from the first message to the last
    """

    messages: int
    seconds: float
    seed: int


async def play(stage: Stage, script: Script, watch: Watch) -> list[Journal]:
    """Play it; return the journal of each consumer, the official client's first.

    :param watch: is shown the journals ten times a second
    """
    journals: list[Journal] = []
    asked = delays(script.messages, script.seed)
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        if stage.official is not None:
            journals.append(Journal(OFFICIAL, script.messages))
            tasks.append(group.create_task(_fail_official(stage.official, journals[-1])))
        for name, consumer in stage.consumers.items():
            journals.append(Journal(name, script.messages))
            tasks.append(group.create_task(_fail_ours(consumer, journals[-1], asked)))
        tasks.append(group.create_task(look(watch, journals)))
        await _send(stage, script)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST + PATIENCE):
                for journal in journals:
                    await journal.all_back.wait()
        await asyncio.sleep(LINGER)
        for task in tasks:
            task.cancel()
    watch(journals)
    return journals


async def _send(stage: Stage, script: Script) -> None:
    """Send the messages at even intervals, whatever the single one takes."""
    now = asyncio.get_running_loop().time
    start = now()
    for number in range(script.messages):
        await asyncio.sleep(start + script.seconds * number / max(script.messages - 1, 1) - now())
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


async def look(watch: Watch, journals: Sequence[Journal]) -> None:
    """Show the journals ten times a second, for ever."""
    while True:
        watch(journals)
        await asyncio.sleep(_LOOK_INTERVAL)
