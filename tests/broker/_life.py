"""A life of random operations on a broker: two workers on one subscription, producers, and an administrator.

The broker is asked for what it counts as acknowledged; :class:`Life` compares that with what the workers were shown:

- a message that is not acknowledged is in the hands of a worker that was shown it, within its delay and two seconds;
- one that is acknowledged, or gone by whatever means, is shown at most once more;
- none of these becomes a dead letter;
- what ``send`` reported is stored under the id that it returned;
- when all is acknowledged the backlog is empty, and nothing is left in the consumers' memory.

It may look only at rest, which every few operations it waits for. :func:`describe` says what each operation does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from pulsar_nack import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    Consumer,
    DeadLetterPolicy,
    Message,
    MessageId,
)
from pulsar_nack.wire import Client, ClientOptions, Producer
from tests.broker._admin import Admin, AdminError
from tests.broker._native import port_of, through
from tests.broker._proxy import TcpProxy
from tests.consumer.official import EXACT
from tests.patience import patience

Place = tuple[int, int, int]
"""Partition, ledger, entry."""
NAME: Final = "sub"
DELAYS: Final = (0.0, 0.1, 0.3, 1.0)
GRACE: Final = 2.0
_AT_REST_AFTER: Final = 25
"""Operations, on average."""
_CHUNK: Final = 1_024
_RANGE: Final = re.compile(r"\((\d+):(-?\d+)\.\.(\d+):(-?\d+)\]")
_KEPT: Final = ("in_work", "ready", "held", "requested", "kept", "dead_letters_waiting")


class Violation(AssertionError):
    """What is wrong, with the seed and what happened to the message."""


@dataclass
class Sent:
    """One message, and what is known of it."""

    number: int
    id: MessageId | None = None
    """None while it is not known to be stored."""
    is_reported: bool = False
    is_deleted: bool = False
    """Its topic was."""
    gone_at: float | None = None
    """Since when it is known to be acknowledged, or gone."""
    acked_in: int | None = None
    """The replay after which a worker's acknowledgement was confirmed, None: it was not, or one was under way then."""
    is_letter: bool = False
    shown: list[float] = field(default_factory=list)

    def shown_since(self, at: float) -> int:
        """Return how often it was shown since then."""
        return sum(each > at for each in self.shown)


class Worker:
    """A consumer through a proxy of its own, and the messages in its hands."""

    def __init__(self, life: Life, number: int, proxy: TcpProxy) -> None:
        self.number = number
        self.proxy = proxy
        self.hand: dict[int, Message] = {}
        self.consumer: Consumer
        self._life = life
        self._stack = AsyncExitStack()
        self._receiving: asyncio.Task[None] | None = None
        self._seeks = 0

    async def open(self) -> None:
        """Subscribe."""
        life = self._life
        options = ClientOptions(backoff_maximum=0.5)
        client = await self._stack.enter_async_context(Client(life.url, options, dial=through(self.proxy)))
        self.consumer = await self._stack.enter_async_context(
            client.subscribe(
                life.topic,
                NAME,
                consumer_type=life.kind,  # type: ignore[arg-type]
                initial_position="earliest",
                consumer_name=f"w{self.number}",
                batch_index_ack=True,
                config=EXACT,
                dead_letter=DeadLetterPolicy(3, topic="dead", publisher=life),
            )
        )
        self._receiving = asyncio.create_task(self._receive(self.consumer))

    async def aclose(self) -> None:
        """Leave; what is in hand is given back."""
        await self._stack.aclose()
        self.hand.clear()
        if self._receiving is not None:
            await asyncio.gather(self._receiving)

    async def _receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            sent = self._life.messages[int(message.data.split()[0])]
            self.hand[sent.number] = message
            self._life.on_shown(sent, message.id, self)

    async def nack(self, number: int, delay: float) -> None:
        """Give one back."""
        message = self.hand.pop(number)
        with suppress(AlreadySettledError, ClosedError):
            await message.nack(delay)

    async def ack(self, number: int) -> None:
        """Acknowledge one; where that fails it is in hand as before."""
        life, message, seeks = self._life, self.hand.pop(number), self._seeks
        sent = life.messages[number]
        replay = life.replays
        try:
            await message.ack()
        except (AlreadySettledError, ClosedError):
            return
        except BrokerError as error:
            life.note(f"ack failed: {error}", number)
            if seeks == self._seeks:
                self.hand.setdefault(number, message)
            return
        life.on_acked(sent, replay)

    async def ack_through(self, number: int) -> None:
        """Acknowledge all up to one, in its partition."""
        life, message, replay = self._life, self.hand[number], self._life.replays
        try:
            await self.consumer.acknowledge_cumulative(message)
        except (BrokerError, ClosedError) as error:
            life.note(f"cumulative ack failed: {error}", number)
            return
        for each in life.of_partition(message.id.partition):
            if each.id is not None and each.id <= message.id:
                self.hand.pop(each.number, None)
                life.on_acked(each, replay)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription; all in hand is forgotten where it moves."""
        before = dict(self.hand)
        if isinstance(position, int):
            self.hand.clear()
        else:
            for number, message in before.items():
                if message.id.partition == position.partition:
                    del self.hand[number]
        self._seeks += 1
        try:
            await self.consumer.seek(position)
        except (BrokerError, ClosedError) as error:
            self._life.note(f"seek failed: {error}")
            self.hand = before | self.hand


class Life:
    """One topic and all who use it.

    :param kind: of the subscription: ``shared``, ``failover`` or ``exclusive``
    :param partitions: 0: the topic has none
    """

    def __init__(self, urls: tuple[str, str], topic: str, kind: str, partitions: int, seed: str) -> None:
        self.url = urls[0]
        self.topic = topic
        self.kind = kind
        self.partitions = partitions
        self.seed = seed
        self.messages: list[Sent] = []
        self.replays = 0
        """How often the subscription was moved, or the like."""
        self.workers: list[Worker] = []
        self.wrong: Violation | None = None
        self._admin = Admin(urls[1])
        self._random = Random(seed)
        self._log: list[tuple[float, str, int | None]] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._producers: list[Producer] = []
        self._proxy: TcpProxy
        self._gone_op_at = 0.0
        """When an operation ended last that acknowledges without a worker."""
        self._replayed_at = 0.0

    # --- running it --------------------------------------------------------------------------------------------------

    async def run(self, operations: int) -> None:
        """Live so many operations.

        :raises Violation: says what is wrong
        """
        async with self._open():
            for _ in range(operations):
                await self._one()
                if self._random.random() < 1 / _AT_REST_AFTER:
                    await self._judge()
            await self._end()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        await self._make_topic()
        async with AsyncExitStack() as stack:
            self._proxy = await stack.enter_async_context(TcpProxy(port_of(self.url)))
            client = Client(self.url, ClientOptions(backoff_maximum=0.5), dial=through(self._proxy))
            await stack.enter_async_context(client)
            for number in range(1 if self.kind == "exclusive" else 2):
                proxy = await stack.enter_async_context(TcpProxy(port_of(self.url)))
                worker = Worker(self, number + 1, proxy)
                await worker.open()
                stack.push_async_callback(worker.aclose)
                self.workers.append(worker)
            told: list[dict[str, Any]] = [
                {},
                {"batching": True, "batch_delay": 0.005},
                {"chunking": True, "chunk_max_bytes": _CHUNK},
            ]
            for options in told:
                producer = client.producer(self.topic, **options)
                self._producers.append(await stack.enter_async_context(producer))
            try:
                yield
            finally:
                for task in self._calls:
                    task.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)

    async def _make_topic(self) -> None:
        path = self.topic.replace("://", "/")
        if self.partitions:
            await asyncio.to_thread(self._admin.create_partitions, self.topic, self.partitions)
        else:
            await asyncio.to_thread(self._admin.request, "PUT", path)

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.wrong is None:
            self.wrong = self._violation(f"a call raised {error!r}", None)

    # --- what is noted -----------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def note(self, what: str, number: int | None = None) -> None:
        """Write what happens into the log."""
        self._log.append((self.now(), what, number))

    def _violation(self, what: str, sent: Sent | None) -> Violation:
        number = None if sent is None else sent.number
        lines = [
            f"{at - self._log[0][0]:7.2f} {text}" + ("" if of is None else f" {of}")
            for at, text, of in self._log
            if of is None or of == number
        ]
        whose = "" if sent is None else f", {sent.id!r}"
        where = f"{self.kind}, {self.partitions} partitions, seed {self.seed!r}"
        return Violation("\n  ".join([f"{what}{whose} ({where})", *lines[-40:]]))

    def of_partition(self, partition: int) -> list[Sent]:
        """Return the messages of a partition that are known to be stored."""
        return [each for each in self.messages if each.id is not None and each.id.partition == partition]

    def on_shown(self, sent: Sent, message_id: MessageId, worker: Worker) -> None:
        """Note that a message is shown."""
        self.note(f"shown to {worker.number}:", sent.number)
        sent.id = message_id
        sent.shown.append(self.now())
        if sent.gone_at is not None and (many := sent.shown_since(sent.gone_at)) > 1:
            self.wrong = self.wrong or self._violation(f"shown {many} times after it was gone", sent)

    def on_acked(self, sent: Sent, replay: int) -> None:
        """Note that a worker's acknowledgement is confirmed, which began after a replay."""
        self.note("acked", sent.number)
        is_certain = replay == self.replays
        sent.acked_in = replay if is_certain else None
        if is_certain and sent.gone_at is None:
            sent.gone_at = self.now()

    async def publish(self, _topic: str, data: bytes, **_: Any) -> MessageId:
        """Publish a dead letter; now and then that fails."""
        sent = self.messages[int(data.split()[0])]
        self.note("dead letter", sent.number)
        sent.is_letter = True
        if sent.gone_at is not None and self.now() - sent.gone_at > GRACE:
            self.wrong = self.wrong or self._violation("a dead letter of what was gone", sent)
        await asyncio.sleep(0.01)
        if self._random.random() < 0.2:
            raise BrokerError("the dead letter is refused, as a test wants it")
        return MessageId(1, 1)

    # --- operations --------------------------------------------------------------------------------------------------

    async def _one(self) -> None:
        if self.wrong is not None:
            raise self.wrong
        random = self._random
        names = list(_OPERATIONS)
        name = random.choices(names, [_OPERATIONS[each][0] for each in names])[0]
        await _OPERATIONS[name][1](self, random.choice(self.workers))
        await asyncio.sleep(random.choice((0.0, 0.0, 0.005, 0.05)))

    async def _send(self, _: Worker) -> None:
        at = self._random.choices(range(3), [3, 4, 1])[0]
        for _each in range(self._random.choice((1, 5, 20))):
            self._begin(self._send_one(self._producers[at], at == 2))

    async def _send_one(self, producer: Producer, is_large: bool) -> None:
        sent = Sent(len(self.messages))
        self.messages.append(sent)
        data = b"%d " % sent.number + bytes(_CHUNK * 2 if is_large else 0)
        self.note("send", sent.number)
        try:
            message_id = await producer.send(data)
        except BrokerError as error:
            self.note(f"not sent: {error}", sent.number)
            return
        self.note(f"stored as {message_id!r}", sent.number)
        sent.id = message_id if sent.id is None else sent.id
        sent.is_reported = True

    def _some(self, worker: Worker) -> list[int]:
        hand = list(worker.hand)
        return self._random.sample(hand, min(len(hand), self._random.choice((1, 1, 3, 10))))

    async def _nack(self, worker: Worker) -> None:
        for number in self._some(worker):
            delay = self._random.choice(DELAYS)
            self.note(f"nack at {worker.number}, {delay} s:", number)
            self._begin(worker.nack(number, delay))

    async def _ack(self, worker: Worker) -> None:
        for number in self._some(worker):
            self.note(f"ack at {worker.number}:", number)
            self._begin(worker.ack(number))

    async def _ack_through(self, worker: Worker) -> None:
        if self.kind != "shared" and worker.hand:
            number = self._random.choice(list(worker.hand))
            self.note(f"cumulative ack at {worker.number}:", number)
            self.note(f"cumulative ack at {worker.number} through {number}")
            await self._until_quiet(worker.ack_through(number))

    async def _seek(self, worker: Worker) -> None:
        position: MessageId | int = 0
        stored = [each.id for each in self.messages if each.id is not None and not each.is_deleted]
        if stored and self._random.random() < 0.7:
            position = self._random.choice(stored)
            if position.is_chunked or position.batch_index >= 0:
                position = MessageId(position.ledger, position.entry, position.partition, topic=position.topic)
        self.note(f"seek at {worker.number} to {position!r}")
        await self._replay(worker.seek(position))

    async def _reset(self, _: Worker) -> None:
        self.note("reset-cursor to the beginning")
        await self._replay(self._admins(lambda topic: self._admin.reset_cursor(topic, NAME, 1)))

    async def _clear(self, _: Worker) -> None:
        known = [each for each in self.messages if each.is_reported]
        self.note("clear-backlog")
        await self._until_quiet(self._admins(lambda topic: self._admin.clear(topic, NAME)))
        self._gone_op_at = now = self.now()
        for each in known:
            if each.gone_at is None:
                each.gone_at = now

    async def _skip(self, _: Worker) -> None:
        self.note("skip 5")
        await self._until_quiet(self._admins(lambda topic: self._admin.skip(topic, NAME, 5)))
        self._gone_op_at = self.now()

    async def _expire(self, _: Worker) -> None:
        self.note("expire what is older than 1 s")
        await self._until_quiet(self._admins(lambda topic: self._admin.expire(topic, NAME, 1)))
        self._gone_op_at = self.now() + 1.0  # the broker looks for it after it has answered

    async def _unload(self, _: Worker) -> None:
        self.note("unload")
        await self._admins(self._admin.unload)

    async def _cut(self, worker: Worker) -> None:
        proxy = self._random.choice([worker.proxy, worker.proxy, self._proxy])
        self.note("cut the producers" if proxy is self._proxy else f"cut {worker.number}")
        proxy.cut()

    async def _restart(self, worker: Worker) -> None:
        self.note(f"restart {worker.number}")
        await worker.aclose()
        await asyncio.sleep(self._random.choice((0.0, 0.3)))
        await worker.open()

    async def _delete(self, _: Worker) -> None:
        if self.partitions or self._random.random() < 0.5:
            return
        await self._settled(patience(10))
        await self._check_stored()
        self.note("delete the topic, and make it again")
        self.replays += 1
        await asyncio.to_thread(self._admin.delete, self.topic)
        with suppress(AdminError):  # a client was faster
            await self._make_topic()
        for each in self.messages:
            each.is_deleted = True
            each.gone_at = self.now()
        for worker in self.workers:
            worker.hand.clear()

    async def _admins(self, do: Callable[[str], None]) -> None:
        for topic in self._names():
            for _ in range(20):
                try:
                    await asyncio.to_thread(do, topic)
                except AdminError as error:
                    self.note(str(error)[:100])
                    if error.status < 500:
                        break
                    await asyncio.sleep(0.2)  # it moves just now
                else:
                    break

    async def _until_quiet(self, call: Coroutine[Any, Any, None]) -> None:
        await call

    async def _replay(self, call: Coroutine[Any, Any, None]) -> None:
        """Do what shows messages again."""
        self._forget_gone()
        await call
        self._forget_gone()
        self._gone_op_at = self._replayed_at = self.now()

    def _forget_gone(self) -> None:
        self.replays += 1
        for each in self.messages:
            if not each.is_deleted:
                each.gone_at = each.acked_in = None

    # --- the oracle --------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [f"{self.topic}-partition-{at}" for at in range(self.partitions)] or [self.topic]

    async def _unacked(self) -> list[Sent]:
        """Ask the broker; of a batch that is acknowledged in part it does not tell of which."""
        acked: list[Callable[[tuple[int, int]], bool]] = []
        for name in self._names():
            stats = await asyncio.to_thread(self._admin.internal_stats, name)
            acked.append(_acked_by(stats["cursors"][NAME]))
        unacked: list[Sent] = []
        for each in self.messages:
            if each.id is None or each.is_deleted:
                continue
            places = each.id.parts if each.id.is_chunked else [(each.id.ledger, each.id.entry)]
            if not all(acked[max(each.id.partition, 0)](place) for place in places):
                unacked.append(each)
        return unacked

    async def _settled(self, timeout: float) -> None:
        """Wait until no call is under way."""
        calls = [task for task in self._calls if not task.done()]
        if calls:
            _, late = await asyncio.wait(calls, timeout=timeout)
            if late:
                raise self._violation(f"calls that have not ended: {late}", None)

    async def _judge(self) -> None:
        self.note("rest")
        await self._settled(patience(10))
        ends_at = self.now() + patience(max(DELAYS) + GRACE)
        while True:
            if self.wrong is not None:
                raise self.wrong
            unacked = await self._unacked()
            hidden = [each for each in unacked if not self._is_shown(each)]
            if not hidden:
                break
            if self.now() > ends_at:
                raise self._violation("unacknowledged, and shown to nobody", hidden[0])
            await asyncio.sleep(0.2)
        self._judge_gone({each.number for each in unacked})

    def _is_shown(self, sent: Sent) -> bool:
        if any(sent.number in worker.hand for worker in self.workers):
            return True
        is_member = sent.id is not None and sent.id.batch_index >= 0
        return is_member and (sent.acked_in == self.replays or sent.is_letter)

    def _judge_gone(self, unacked: set[int]) -> None:
        now = self.now()
        for each in self.messages:
            if each.id is None or each.number in unacked or each.gone_at is not None:
                continue
            if not each.is_letter and self._gone_op_at > self._replayed_at:
                many = each.shown_since(self._gone_op_at)
                if many > 1:
                    raise self._violation(f"shown {many} times after it was gone", each)
            each.gone_at = now

    async def _end(self) -> None:
        await self._judge()
        self.note("acknowledge all")
        ends_at = self.now() + patience(5 + 2 * GRACE)
        while True:
            for worker in self.workers:
                for number in list(worker.hand):
                    self._begin(worker.ack(number))
            await self._settled(patience(10))
            await asyncio.sleep(0.2)
            if self.wrong is not None:
                raise self.wrong
            unacked = await self._unacked()
            left = [_left(worker) for worker in self.workers]
            if not unacked and not any(left) and not any(worker.hand for worker in self.workers):
                break
            if self.now() > ends_at:
                first = unacked[0] if unacked else None
                raise self._violation(f"all was acknowledged, and left are {len(unacked)} messages, {left}", first)
        await self._check_stored()

    async def _check_stored(self) -> None:
        """Read the whole topic, and compare it with what was reported."""
        wanted = {each.number: each for each in self.messages if each.is_reported and not each.is_deleted}
        if not wanted:
            return
        found: set[int] = set()
        name = f"reader-{len(self._log)}"
        async with Client(self.url) as client, client.subscribe(self.topic, name, initial_position="earliest") as reader:
            with suppress(TimeoutError):
                while not wanted.keys() <= found:
                    message = await reader.receive(patience(3))
                    found.add(int(message.data.split()[0]))
        lost = sorted(wanted.keys() - found)
        if lost:
            raise self._violation(f"{len(lost)} messages were reported as stored, and are not", wanted[lost[0]])


def _acked_by(cursor: dict[str, Any]) -> Callable[[tuple[int, int]], bool]:
    """Return what tells whether an entry is acknowledged, by the broker's statistics."""
    ledger, _, entry = cursor["markDeletePosition"].partition(":")
    through_place = (int(ledger), int(entry))
    found = _RANGE.findall(cursor["individuallyDeletedMessages"])
    ranges = [((int(a), int(b)), (int(c), int(d))) for a, b, c, d in found]

    def is_acked(place: tuple[int, int]) -> bool:
        return place <= through_place or any(lower < place <= upper for lower, upper in ranges)

    return is_acked


def _left(worker: Worker) -> dict[str, int]:
    told = worker.consumer.statistics()
    return {name: value for name in _KEPT if (value := getattr(told, name))}


Operation = Callable[[Life, Worker], Coroutine[Any, Any, None]]
_OPERATIONS: Final[dict[str, tuple[float, Operation]]] = {
    "send": (6, Life._send),
    "nack": (8, Life._nack),
    "ack": (6, Life._ack),
    "cumulative ack": (1, Life._ack_through),
    "seek": (1, Life._seek),
    "reset": (0.6, Life._reset),
    "clear": (0.6, Life._clear),
    "skip": (0.5, Life._skip),
    "expire": (0.4, Life._expire),
    "unload": (0.6, Life._unload),
    "cut": (1, Life._cut),
    "restart": (0.6, Life._restart),
    "delete": (0.3, Life._delete),
}
"""How often each happens, beside the others, and what it does."""
