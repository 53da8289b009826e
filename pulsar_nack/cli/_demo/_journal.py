"""Journals of what happened to the messages of one consumer. Times are seconds of the event loop's clock."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass
from typing import Final

SHORTEST: Final = 0.1
LONGEST: Final = 3.0


def delays(messages: int, seed: int) -> list[float]:
    """Return the delay of each message's nack in seconds: whole ms, evenly spread on a logarithmic scale."""
    # not for secrets: the same seed must give the same demo
    numbers = random.Random(seed)  # noqa: S311
    low, high = math.log(SHORTEST), math.log(LONGEST)
    return [round(math.exp(numbers.uniform(low, high)), 3) for _ in range(messages)]


@dataclass(slots=True)
class Failure:
    """A message that was nacked.

    :param asked: the delay of the nack
    :param deliveries: how often the message was delivered in all
    """

    asked: float
    nacked_at: float
    back_at: float | None = None
    deliveries: int = 1

    @property
    def actual(self) -> float | None:
        """Return the delay after which the message came back, None if it did not."""
        return None if self.back_at is None else self.back_at - self.nacked_at

    @property
    def due_at(self) -> float:
        """Return when the message should come back."""
        return self.nacked_at + self.asked


class Journal:
    """The failures of one consumer.

    :param name: the consumer's name for people
    :param expected: how many messages the consumer should get
    """

    def __init__(self, name: str, expected: int) -> None:
        self.name = name
        self.expected = expected
        self.failures: dict[int, Failure] = {}
        self.back = 0
        self.all_back = asyncio.Event()

    def knows(self, number: int) -> bool:
        """Return whether a message was delivered before."""
        return number in self.failures

    @property
    def waiting(self) -> int:
        """Return how many messages failed and are not back yet."""
        return len(self.failures) - self.back

    def failed(self, number: int, asked: float, now: float) -> None:
        """Note that a message was delivered for the first time and is nacked."""
        self.failures[number] = Failure(asked, now)

    def came_back(self, number: int, now: float) -> None:
        """Note that a message was redelivered."""
        failure = self.failures[number]
        failure.deliveries += 1
        if failure.back_at is None:
            failure.back_at = now
            self.back += 1
        if self.back == self.expected:
            self.all_back.set()
