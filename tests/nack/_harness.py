"""What the tracker's tests share: a recording callback, a recording clock, and names for ids."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence

from pulsar_nack import MessageId, NackConfig
from pulsar_nack.testing import ManualClock

Outcome = BaseException | float | None


def mid(entry: int, *, batch_index: int = -1) -> MessageId:
    """Return an id of one entry."""
    return MessageId(3, entry, batch_index=batch_index)


def loop_ms() -> int:
    """Return the virtual loop's time in ms."""
    return round(asyncio.get_running_loop().time() * 1000)


async def settle(rounds: int = 30) -> None:
    """Let everything run that is ready; takes no virtual time."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def bucket_width(config: NackConfig, delay_ms: int) -> int:
    """Return how wide a bucket is for a delay: the rule, written a second time."""
    bits: int = config.negative_ack_precision_bit_cnt
    if config.precision_ratio is not None:
        while bits and 2**bits > max(delay_ms * config.precision_ratio, 1):
            bits -= 1
    return int(2**bits)


class Recorder:
    """A redelivery callback: records the ids of each call with the time, and then follows its instructions.

    ``outcomes``: for each call in turn an error to raise, seconds to take, or None; afterwards ``seconds`` each.
    """

    def __init__(
        self, now: Callable[[], int] = loop_ms, *, seconds: float = 0, outcomes: Sequence[Outcome] = ()
    ) -> None:
        self.now = now
        self.seconds = seconds
        self.outcomes = deque(outcomes)
        self.commands: list[tuple[int, list[MessageId]]] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self, ids: Sequence[MessageId]) -> None:
        """Take one call."""
        self.commands.append((self.now(), list(ids)))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            outcome = self.outcomes.popleft() if self.outcomes else self.seconds
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome:
                await asyncio.sleep(outcome)
        finally:
            self.running -= 1

    def take(self, ids: Sequence[MessageId]) -> None:
        """Take one call as a plain callback."""
        self.commands.append((self.now(), list(ids)))

    @property
    def times(self) -> list[int]:
        """Return when each call came."""
        return [at for at, _ in self.commands]

    @property
    def ids(self) -> list[MessageId]:
        """Return all ids in the order in which they came."""
        return [message_id for _, ids in self.commands for message_id in ids]

    def at(self, message_id: MessageId) -> list[int]:
        """Return when an id came."""
        return [at for at, ids in self.commands if message_id in ids]

    def assert_once_each(self, ids: Sequence[MessageId]) -> None:
        """Check that these ids and no others came, once each."""
        assert Counter(self.ids) == Counter(ids)


class RecordingClock(ManualClock):
    """A manual clock that records every alarm, and how many were cancelled."""

    def __init__(self, now_ms: int = 0) -> None:
        super().__init__(now_ms)
        self.set_for: list[int] = []
        self.cancelled = 0

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Set an alarm."""
        self.set_for.append(at_ms)
        cancel = super().call_at(at_ms, callback)

        def noting() -> None:
            self.cancelled += 1
            cancel()

        return noting

    async def run_to(self, ms: int, step: int = 1) -> None:
        """Move to a time in steps, and let everything run after each."""
        while self.now_ms() < ms:
            self.advance(min(step, ms - self.now_ms()))
            await settle(8)
