"""Two workers on one subscription of a scripted broker, with events one after another, in any order.

The topic has a message ``a`` and a batch of ``b`` and ``c``, all of them at workers at first. Consumers and the native
client below are the real ones; a worker receives at once whatever its consumer delivers, and ``c`` stays in flight, as
a long job. :meth:`World.do` does an event, a short text such as ``nack a 1`` for worker 1's negative acknowledgement of
``a``. Acknowledgements and dead letters are open until an event confirms or fails them, and the broker's messages for a
worker wait until an event delivers them.

:meth:`World.end` decides what is right: all is confirmed and delivered, and time passes. Then

- a message that the broker counts as unacknowledged is in flight at a worker;
- one that it counts as acknowledged, by any means, was delivered at most once more, though it was nacked each time;
- no dead letter of an acknowledged message was begun;
- once all messages in flight are acknowledged, nothing is left in the consumers' memory and in the backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pulsar_nack import BrokerError, Consumer, DeadLetterPolicy, MessageId, NackConfig
from pulsar_nack.wire import SubscribeOptions, WirePort
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._consumer._topic_discovery import selection_of
from tests.wire.fake_broker import Call, FakeBroker, Link, as_usual, refuse
from tests.wire.fake_topics import FakeConsumer, FakeSubscription

from .two_hands import DELAY, Letters, Worker

TOPIC: Final = "persistent://public/default/t"
NAME: Final = "s"
LEDGER: Final = 700_000_001
"""A number that nothing else has."""
GRACE: Final = 2.0
"""A message is delivered within its delay and this."""
_MOMENT: Final = 0.001
_MESSAGES: Final = ("a", "b", "c")


class WrongError(AssertionError):
    """What is wrong after some events."""


class World:
    """A broker and two workers. Each round has its own messages.

    :param kind: the subscription's type, ``shared`` or ``failover``
    :param about: the messages that workers act on; the others stay in flight
    """

    def __init__(self, kind: str, about: str = "ab") -> None:
        self.kind = kind
        self.about = about
        self.broker = FakeBroker(latency=0.0)
        self.topic = self.broker.topic(TOPIC)
        self.topic.ledger = LEDGER
        self.acks: list[Call] = []
        self.letters = Letters(self)
        self.workers: list[Worker] = []
        self.rounds = 0
        self.start = 0
        """The entry of ``a``; that of ``b`` and ``c`` is the next."""
        self.nacked_at: dict[str, float] = {}
        self.nacked_by: dict[str, int] = {}
        self.first_delivered_at: dict[tuple[str, int], float] = {}
        """When a worker first got a message in its present session."""
        self.gone_at: dict[str, float] = {}
        """Since when the broker counts a message as acknowledged."""
        self.delivered_gone: dict[str, int] = {}
        """How often it was delivered since."""
        self.wrong: list[str] = []
        self._is_ending = False

    async def open(self) -> None:
        """Let both subscribe."""
        for number in (1, 2):
            pool = Pool(self.broker.url, dial=self.broker.dial)
            told = SubscribeOptions(
                NAME,
                type=self.kind,  # type: ignore[arg-type]
                initial_position="earliest",
                consumer_name=f"w{number}",
                batch_index_ack=True,
                ack_group_ms=0,
            )
            port = await WirePort.open(ClientContext(pool), selection_of(TOPIC), told)
            consumer = Consumer(
                port,
                config=NackConfig(negative_ack_precision_bit_cnt=0),
                dead_letter=DeadLetterPolicy(1, topic="dead", publisher=self.letters),
            )
            await consumer.open()
            self.workers.append(Worker(self, number, consumer, pool))
            await asyncio.sleep(_MOMENT)
        self.subscription.is_paused = True

    async def aclose(self) -> None:
        """Close both."""
        self._be_prompt()
        for worker in self.workers:
            await worker.consumer.aclose()
            worker.receiving.cancel()
            for task in list(worker.calls):
                task.cancel()
            await asyncio.gather(worker.receiving, *worker.calls, return_exceptions=True)
            await worker.pool.aclose()

    @property
    def subscription(self) -> FakeSubscription:
        """Return the subscription at the broker."""
        return self.topic.subscriptions[NAME]

    # --- the broker's state ------------------------------------------------------------------------------------------

    def place(self, name: str) -> tuple[int, int]:
        """Return the ledger and entry of a message."""
        return LEDGER, self.start + (name != "a")

    def is_acked(self, name: str) -> bool:
        """Return whether the broker counts a message as acknowledged."""
        if self.place(name) in self.subscription.acked:
            return True
        words = self.subscription.unacked_indexes.get(self.place(name))
        return words is not None and name != "a" and not words[0] >> (name == "c") & 1

    def name_of(self, data: bytes) -> str | None:
        """Return the name of a message of this round by its payload."""
        name, _, number = data.decode().partition(" ")
        return name if int(number) == self.rounds else None

    def seen_by(self, worker: Worker) -> FakeConsumer | None:
        """Return a worker's consumer at the broker, None while it is away."""
        return next((each for each in self.subscription.consumers if each.name == f"w{worker.number}"), None)

    def _link(self, worker: Worker) -> Link | None:
        for link in self.broker.links:
            if any(consumer.name == f"w{worker.number}" for _, consumer in link.consumers.values()):
                return link
        return None

    # --- records -----------------------------------------------------------------------------------------------------

    def on_delivered(self, name: str, worker: Worker) -> None:
        """Note that a message was delivered."""
        self._note_gone()
        self.first_delivered_at.setdefault((name, worker.number), asyncio.get_running_loop().time())
        if name in self.gone_at and not self._cannot_know(name, worker):
            self.delivered_gone[name] += 1
            if self.delivered_gone[name] > 1:
                self.wrong.append(
                    f"{name} was shown {self.delivered_gone[name]} times after it was acknowledged or gone"
                )
            elif self._is_ending and name in self.about:
                worker.begin(worker.nack(name))

    def on_letter(self, name: str) -> None:
        """Note that a dead letter is published, or tried again."""
        self._note_gone()
        gone_at = self.gone_at.get(name)
        if gone_at is None or self._cannot_know(name, self.workers[self.nacked_by.get(name, 1) - 1]):
            return
        if self.nacked_at.get(name, 0.0) > gone_at:
            self.wrong.append(f"{name} became a dead letter after it was acknowledged or gone")

    def _cannot_know(self, name: str, worker: Worker) -> bool:
        """Return whether another worker acknowledged one of a batch that a worker got before, in this session.

        The broker reports an entry only when it is wholly acknowledged.
        """
        if self.place(name) in self.subscription.acked:
            return False
        first_at = self.first_delivered_at.get((name, worker.number))
        return first_at is not None and first_at <= self.gone_at[name]

    def _note_gone(self) -> None:
        now = asyncio.get_running_loop().time()
        for name in _MESSAGES:
            if not self.is_acked(name):
                self.gone_at.pop(name, None)
            elif name not in self.gone_at:
                self.gone_at[name], self.delivered_gone[name] = now, 0

    def _drop_acks(self) -> None:
        """Lose acknowledgements of consumers that are gone."""
        self.acks[:] = [call for call in self.acks if call.body.consumer_id in call.link.consumers]

    # --- events ------------------------------------------------------------------------------------------------------

    async def begin(self, placed: Mapping[str, int] | None = None) -> None:
        """Begin a round: new messages, in flight at the workers with these numbers, by entry."""
        self.rounds += 1
        placed = placed or {"a": 1, "b": 1}
        self.start = len(self.topic.entries)
        self._is_ending = False
        self.wrong.clear()
        for notes in (self.nacked_at, self.nacked_by, self.first_delivered_at, self.gone_at, self.delivered_gone):
            notes.clear()
        self.broker.always("ACK", self.acks.append)
        self.letters.is_prompt = False
        self.subscription.is_paused = True
        self.topic.publish(b"a %d" % self.rounds)
        self.topic.publish_batch([b"b %d" % self.rounds, b"c %d" % self.rounds])
        if self.kind == "failover":
            while self.subscription.consumers[0].name != "w1":
                self.subscription.switch()
        for name in ("a", "b"):
            consumer = self.seen_by(self.workers[placed[name] - 1])
            assert consumer is not None
            assert self.subscription.hand_out_next(consumer)
            await asyncio.sleep(_MOMENT)
        assert sum(len(worker.hand) for worker in self.workers) == len(_MESSAGES)

    def possible(self) -> list[str]:
        """Return the events that can happen now."""
        events: list[str] = []
        is_some_away = False
        for worker in self.workers:
            number, seen = worker.number, self.seen_by(worker)
            for name in self.about:
                if name in worker.hand:
                    events += [f"nack {name} {number}", f"ack {name} {number}"]
                if seen is not None and self.place(name) in seen.pending:
                    events.append(f"copy {name} {number}")
            if seen is None:
                is_some_away = True
                continue
            if self._has_for(seen):
                events.append(f"deliver {number}")
            events += [f"seek {number}", f"lost {number}"]
            if any(call.link is self._link(worker) for call in self.acks):
                events.append(f"late {number}")
        if self.acks:
            events += ["confirm", "fail"]
        if self.letters.waiting:
            events += ["stored", "refused"]
        told = [worker.consumer.statistics() for worker in self.workers]
        if is_some_away or any(each.held or each.dead_letters_waiting for each in told):
            events.append("due")
        events += ["reset", "clear", "closed"]
        if self.kind == "failover" and len(self.subscription.consumers) > 1:
            events.append("switch")
        return events

    def _has_for(self, seen: FakeConsumer) -> bool:
        is_reader = not self.subscription.has_one_reader or seen is self.subscription.consumers[0]
        return is_reader and self.subscription._first() is not None

    async def do(self, event: str) -> None:
        """Do an event, and everything that takes no time."""
        kind, *arguments = event.split()
        worker = self.workers[int(arguments[-1]) - 1] if arguments else None
        if kind in {"seek", "reset", "closed"}:
            self._end_sessions(self.workers)
        elif worker is not None and kind in {"lost", "late"}:
            self._end_sessions([worker])
        if worker is not None:
            self._do_at(worker, kind, arguments[0])
        else:
            _ALL[kind](self)
        self._drop_acks()
        self._note_gone()
        await asyncio.sleep(DELAY + _MOMENT if kind == "due" else _MOMENT)
        self._drop_acks()
        self._note_gone()

    def _end_sessions(self, workers: Sequence[Worker]) -> None:
        numbers = {worker.number for worker in workers}
        self.first_delivered_at = {key: at for key, at in self.first_delivered_at.items() if key[1] not in numbers}

    def _do_at(self, worker: Worker, kind: str, name: str) -> None:
        if kind == "nack":
            worker.begin(worker.nack(name))
        elif kind == "ack":
            worker.begin(worker.ack(name))
        elif kind == "copy":
            self.subscription.hand_out_twice(self.place(name))
        elif kind == "deliver":
            seen = self.seen_by(worker)
            assert seen is not None, (kind, self)
            self.subscription.hand_out_next(seen)
        elif kind == "seek":
            self._carry_out(worker)
            worker.begin(worker.seek(MessageId(*self.place("a"), topic=TOPIC)))
        else:  # lost, or late: the broker has accepted acknowledgements, and no receipt arrives
            if kind == "late":
                self._carry_out(worker)
            link = self._link(worker)
            assert link is not None
            link.transport.cut()

    def _carry_out(self, worker: Worker) -> None:
        link = self._link(worker)
        for call in [call for call in self.acks if call.link is link]:
            self.acks.remove(call)
            as_usual(call)

    def _reset(self) -> None:
        self._closed()
        self.subscription.rewind(self.start)

    def _closed(self) -> None:
        self.broker.close_consumers(self.subscription)

    # --- the oracle --------------------------------------------------------------------------------------------------

    def _be_prompt(self) -> None:
        """Confirm and deliver all, from now on at once."""
        self.letters.is_prompt = True
        while self.letters.waiting:
            self.letters.answer(None)
        self.broker.normally("ACK")
        while self.acks:
            as_usual(self.acks.pop(0))
        self.subscription.is_paused = False
        self.subscription.dispatch()

    async def end(self) -> None:
        """Let everything end.

        :raises WrongError: says what is wrong
        """
        self._is_ending = True
        self._note_gone()
        self._be_prompt()
        await asyncio.sleep(_MOMENT)
        for worker in self.workers:
            for name in self.about:
                if self.is_acked(name) and name in worker.hand:
                    worker.begin(worker.nack(name))
        await asyncio.sleep(DELAY + GRACE)
        for name in _MESSAGES:
            if not self.is_acked(name) and not any(name in worker.hand for worker in self.workers):
                self.wrong.append(f"{name} is unacknowledged, and was shown to nobody within {DELAY + GRACE} s")
        await asyncio.sleep(DELAY + GRACE)
        self.wrong += [f"a call of worker {worker.number} has not ended" for worker in self.workers if worker.calls]
        self._judge()
        for worker in self.workers:
            for name in list(worker.hand):
                worker.begin(worker.ack(name))
        await asyncio.sleep(GRACE)
        for worker in self.workers:
            self._judge_memory(worker)
        self.wrong += [f"{name} cannot be acknowledged" for name in _MESSAGES if not self.is_acked(name)]
        self._judge()
        await asyncio.sleep(90.0)  # entries remembered for some time are forgotten

    async def forget(self) -> bool:
        """Leave the round unjudged; return whether another one can begin."""
        self.wrong.clear()
        self._be_prompt()
        await asyncio.sleep(1.0)
        for worker in self.workers:
            for name in list(worker.hand):
                worker.begin(worker.ack(name))
        await asyncio.sleep(DELAY + GRACE)
        for worker in self.workers:
            for name in list(worker.hand):
                worker.begin(worker.ack(name))
        await asyncio.sleep(90.0)
        self.wrong.clear()
        for worker in self.workers:
            self._judge_memory(worker)
        return not self.wrong and all(map(self.is_acked, _MESSAGES)) and len(self.subscription.consumers) == 2

    def _judge(self) -> None:
        if self.wrong:
            raise WrongError("; ".join(dict.fromkeys(self.wrong)))

    def _judge_memory(self, worker: Worker) -> None:
        told = worker.consumer.statistics()
        kept = {"in_work", "ready", "held", "requested", "kept", "unacked", "dead_letters_waiting"}
        left = {name: value for name in sorted(kept) if (value := getattr(told, name))}
        if left:
            self.wrong.append(f"all is acknowledged or gone, and worker {worker.number} still has {left}")


_ALL: Final[dict[str, Callable[[World], None]]] = {
    "confirm": lambda world: as_usual(world.acks.pop(0)),
    "fail": lambda world: refuse("MetadataError")(world.acks.pop(0)),
    "stored": lambda world: world.letters.answer(None),
    "refused": lambda world: world.letters.answer(BrokerError("the dead letter was refused")),
    "due": lambda _: None,
    "reset": World._reset,
    "clear": lambda world: world.subscription.skip_all(),
    "closed": World._closed,
    "switch": lambda world: world.subscription.switch(),
}
