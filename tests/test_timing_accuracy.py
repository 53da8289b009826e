"""The whole tracker on the real clock: coarse bounds that hold on a busy machine; benchmarks have the fine figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import pytest

from pulsar_nack import Clock, MessageId, NackConfig, NegativeAcksTracker
from pulsar_nack.clock import MonotonicClock
from tests.patience import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.xdist_group("heavy")]

COUNT = 400
LIMIT_MS = patience(0.025) * 1000
"""100 ms on a quiet machine."""
SHORTEST, LONGEST = 0.02, 3.0


def uvloop_factory() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, or skip."""
    return pytest.importorskip("uvloop").new_event_loop()  # type: ignore[no-any-return]


async def errors_ms(config: NackConfig, clock: Clock | None) -> tuple[list[tuple[float, float]], float]:
    """Nack 400 ids, one each 5 ms with random delays; return for each its delay and how late it came, in ms.

    Return also by how many ms the machine delays 99 of 100 plain timers that run beside them.
    """
    loop, plain_late = asyncio.get_running_loop(), list[float]()

    def ring(due: float) -> None:
        plain_late.append(1000 * (loop.time() - due))

    asked: dict[MessageId, tuple[float, float]] = {}
    came: dict[MessageId, float] = {}
    chance = random.Random(393)

    async def redeliver(ids: Sequence[MessageId]) -> None:
        now = time.monotonic()
        for message_id in ids:
            assert message_id not in came
            came[message_id] = now

    async with NegativeAcksTracker(redeliver, config, clock=clock) as tracker:
        for entry in range(COUNT):
            delay = chance.uniform(SHORTEST, LONGEST)
            asked[MessageId(1, entry)] = (time.monotonic(), delay)
            await tracker.nack(MessageId(1, entry), delay)
            loop.call_at(loop.time() + delay, ring, loop.time() + delay)
            await asyncio.sleep(0.005)
        await asyncio.sleep(LONGEST)
        async with asyncio.timeout(patience(1)):
            while len(came) < COUNT or len(plain_late) < COUNT:
                await asyncio.sleep(0.05)
        statistics = tracker.statistics()
        assert (statistics.pending, statistics.sent) == (0, COUNT)
        assert statistics.wakeups - statistics.early_wakeups <= COUNT
        machine_ms = sorted(plain_late)[int(COUNT * 0.99)]
        assert statistics.lateness.p99_ms < LIMIT_MS + machine_ms
    assert came.keys() == asked.keys()
    late = [(delay * 1000, (came[message_id] - at - delay) * 1000) for message_id, (at, delay) in asked.items()]
    return late, machine_ms


@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop_factory], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("clock", [None, MonotonicClock()], ids=["loop clock", "monotonic clock"])
def test_four_hundred_deadlines(
    bits: int, factory: Callable[[], asyncio.AbstractEventLoop], clock: Clock | None
) -> None:
    """400 deadlines of 20 ms to 3 s while nacks keep coming: none early or lost, p99 within 100 ms of plain timers."""
    config = NackConfig(negative_ack_precision_bit_cnt=bits)
    with asyncio.Runner(loop_factory=factory) as runner:
        results, machine_ms = runner.run(errors_ms(config, clock))
    for delay, late in results:
        widest = min(2**bits, max(delay / 8, 1))
        assert late > -(widest + 2)  # a ms for each of the two roundings to whole ms
    late_ms = sorted(late for _, late in results)
    assert late_ms[int(COUNT * 0.99)] < LIMIT_MS + machine_ms
