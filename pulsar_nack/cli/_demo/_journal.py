"""What happened to the messages of one consumer. Times are seconds of the event loop's clock."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass
from typing import Final

SHORTEST: Final = 0.1
LONGEST: Final = 3.0


def delays(messages: int, seed: int) -> list[float]:
    """Return the delay in seconds that each message is nacked with: whole ms, even on a logarithmic scale."""
    # not for secrets: the same seed has to give the same demo
    numbers = random.Random(seed)  # noqa: S311
    low, high = math.log(SHORTEST), math.log(LONGEST)
    return [round(math.exp(numbers.uniform(low, high)), 3) for _ in range(messages)]


@dataclass(slots=True)
class Failure:
    """One message that was nacked: what was asked, and what came of it.

    :param asked: the delay
    :param shown: how often the message was shown in all
    """

    asked: float
    nacked_at: float
    back_at: float | None = None
    shown: int = 1

    @property
    def actual(self) -> float | None:
        """Return the delay after which it came back, None if it did not."""
        return None if self.back_at is None else self.back_at - self.nacked_at

    @property
    def due_at(self) -> float:
        """Return when it should come back."""
        return self.nacked_at + self.asked


class Journal:
    """Keeps the failures of one consumer.

    :param name: the consumer's, for people
    :param expected: how many messages it should get
    """

    def __init__(self, name: str, expected: int) -> None:
        self.name = name
        self.expected = expected
        self.failures: dict[int, Failure] = {}
        self.back = 0
        self.all_back = asyncio.Event()

    def knows(self, number: int) -> bool:
        """Return whether a message was shown before."""
        return number in self.failures

    @property
    def waiting(self) -> int:
        """Return how many have failed and did not come back yet."""
        return len(self.failures) - self.back

    def failed(self, number: int, asked: float, now: float) -> None:
        """Note that a message was shown for the first time and is nacked."""
        self.failures[number] = Failure(asked, now)

    def came_back(self, number: int, now: float) -> None:
        """Note that a message was shown again."""
        failure = self.failures[number]
        failure.shown += 1
        if failure.back_at is None:
            failure.back_at = now
            self.back += 1
        if self.back == self.expected:
            self.all_back.set()
