"""Many concurrent calls to a cluster with random faults: each call ends, with an answer or one of our errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_nack.errors import BrokerError
from pulsar_nack.testing import run
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._handlers import Handler
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.tiers import examples
from tests.wire.fake_broker import (
    Answer,
    Call,
    FakeBroker,
    as_usual,
    carried_out_then_cut,
    cut,
    half,
    later,
    raw,
    redirect,
    refuse,
    silence,
)

URLS = ["pulsar://broker:6650", "pulsar://second:6650", "pulsar://third:6650"]
TOPICS = [f"persistent://public/default/t{number}" for number in range(5)]
OPTIONS = ClientOptions(connect_timeout=2, request_timeout=3, keep_alive=1, max_redirects=4)
LONGEST = 3 * 2 + 5 * (3 + 2) + 1  # three addresses, then redirects that each connect and ask


class LossCounter(Handler):
    """A consumer that counts the calls about a lost connection."""

    def __init__(self) -> None:
        self.losses = 0

    def on_connection_lost(self, error: Exception) -> None:
        self.losses += 1


class Trouble:
    """A cluster of three whose nodes go down, stop reading, cut, and answer nonsense, all drawn from one generator."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.broker = FakeBroker()
        for url in URLS:
            self.broker.node(url)
        for topic in TOPICS:
            self.broker.topic(topic).owner = random.choice(URLS)
        for kind in ("CONNECT", "LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "PING"):
            self.broker.always(kind, self._answer)

    def _answer(self, call: Call) -> None:
        good: list[Answer] = [as_usual, as_usual, later(self.random.random())]
        bad: list[Answer] = [cut, half(share=self.random.random()), carried_out_then_cut, silence, later(4.0)]
        bad += [refuse(self.random.choice(pb.ServerError.keys())), raw(self.random.randbytes(20))]
        if call.kind == "LOOKUP":
            bad.append(redirect(self.random.choice(URLS)))
        self.random.choice(good if self.random.random() < 0.7 else bad)(call)

    async def go_on(self) -> None:
        """Cause a fault now and then, without end."""
        while True:
            await asyncio.sleep(self.random.random() * 2)
            node = self.broker.node(self.random.choice(URLS))
            what = self.random.randrange(6)
            if what == 0:
                node.kill()
            elif what == 1:
                node.hangs = not node.hangs
            elif what == 2 and node.links:
                self.random.choice(node.links).transport.stall()
            elif what == 3 and node.links:
                self.random.choice(node.links).transport.piece_bytes = self.random.randint(1, 20)
            else:
                node.is_down = node.hangs = False

    def end(self) -> None:
        """End all faults."""
        for url in URLS:
            self.broker.node(url).is_down = self.broker.node(url).hangs = False
        for kind in ("CONNECT", "LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "PING"):
            self.broker.normally(kind)
        self.broker.cut()


async def ask(lookup: ClientContext, random: Random, on_them: list[tuple[LossCounter, Connection]]) -> str:
    """Make a call, perhaps with a short timeout; return how it ended."""
    topic = random.choice(TOPICS)
    questions: list[Any] = [
        lambda: lookup.broker(topic), lambda: lookup.partitions(topic), lambda: lookup.topics("public/default")
    ]  # fmt: skip
    patience = random.choice([0.5, LONGEST, LONGEST])
    try:
        async with asyncio.timeout(patience):
            found = await random.choice(questions)()
    except BrokerError:
        return "an error of ours"
    except TimeoutError:
        assert patience < LONGEST, "a call does not end"
        return "given up"
    if isinstance(found, Connection) and found.is_open:
        counted = LossCounter()
        found.consumers[next(found.handler_ids)] = counted
        on_them.append((counted, found))
    return "an answer"


async def live(seed: int) -> Counter[str]:
    """Let twenty tasks make ten calls each during faults, then check that nothing has changed."""
    trouble = Trouble(Random(seed))
    pool = Pool(
        ",".join([URLS[0], *(url.removeprefix("pulsar://") for url in URLS[1:])]),
        OPTIONS,
        dial=trouble.broker.dial,
        choose=lambda _: 0,
    )
    lookup = ClientContext(pool)
    ended: Counter[str] = Counter()
    on_them: list[tuple[LossCounter, Connection]] = []

    async def user(number: int) -> None:
        random = Random(f"{seed} {number}")
        for _ in range(10):
            await asyncio.sleep(random.random())
            ended[await ask(lookup, random, on_them)] += 1

    troubling = asyncio.create_task(trouble.go_on())
    await asyncio.gather(*(user(number) for number in range(20)))
    troubling.cancel()
    trouble.end()
    await asyncio.sleep(10)
    for topic in TOPICS:
        assert (await lookup.broker(topic)).address.url == trouble.broker.topic(topic).owner
    await pool.aclose()
    await asyncio.sleep(1)
    assert all(each.losses == 1 for each, _ in on_them), "called about the loss more than once, or never"
    assert trouble.broker.links == []
    assert pool.connections() == []
    assert len(asyncio.all_tasks()) == 1, "tasks are left"
    return ended


@pytest.mark.slow
@examples(25)
@given(st.integers(0, 2**32))
@example(0)
def test_every_call_ends(seed: int) -> None:
    """With any faults each call ends in time, each handler is called once about each loss, and nothing is left."""
    ended = run(live(seed), patience=5)
    assert sum(ended.values()) == 200


def test_trouble_is_trouble() -> None:
    """The faults above happen: some calls get an answer, some an error, and some are cancelled."""
    total: Counter[str] = Counter()
    for seed in range(3):
        total += run(live(seed))
    assert min(total[each] for each in ("an answer", "an error of ours", "given up")) > 10
