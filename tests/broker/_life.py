"""A life of random operations on a broker: two workers on one subscription, producers, and an administrator.

The broker is asked for what it counts as acknowledged; :class:`Life` compares that with what the workers were shown:

- a message that is not acknowledged is in the hands of a worker that was shown it, within its delay and two seconds;
- one that is acknowledged, or gone by whatever means, is shown at most once more;
- none of these becomes a dead letter;
- what ``send`` reported is stored under the id that it returned;
- when all is acknowledged the backlog is empty, and nothing is left in the consumers' memory.

The first two are looked at while all rest, which every few operations they do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any, Final

from pulsar_nack import BrokerError, MessageId
from pulsar_nack.wire import Client, ClientOptions, Producer
from tests.broker._admin import Admin, AdminError
from tests.broker._native import port_of, through
from tests.broker._proxy import TcpProxy
from tests.broker._workers import NAME, Sent, Worker, acked_by, places_of
from tests.patience import patience

DELAYS: Final = (0.0, 0.1, 0.3, 1.0)
GRACE: Final = 2.0
ACK_MEMORY: Final = 12.0
"""Seconds after a lost connection in which acknowledgements from before it may hide what is shown again on purpose."""
TOLD_WITHIN: Final = 1.5
"""Seconds in which a consumer has asked for what is gone, also where that takes a new connection."""
_AT_REST_AFTER: Final = 25
"""Operations, on average."""
_CHUNK: Final = 1_024
_KEPT: Final = ("in_work", "ready", "held", "requested", "kept", "dead_letters_waiting")


class WrongError(AssertionError):
    """What is wrong, with the seed and what happened to the message."""


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
        self.replays: Counter[int] = Counter()
        """How often the subscription was moved in each partition."""
        self.workers: list[Worker] = []
        self.wrong: WrongError | None = None
        self._admin = Admin(urls[1])
        self._random = Random(seed)
        self._log: list[tuple[float, str, int | None]] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._producers: list[Producer] = []
        self._proxy: TcpProxy
        self._gone_op_at = 0.0
        """When an operation ended last that acknowledges without a worker."""
        self._replayed_at = 0.0
        self._cut_at = -ACK_MEMORY

    # --- running it --------------------------------------------------------------------------------------------------

    async def run(self, operations: int) -> None:
        """Live so many operations.

        :raises WrongError: says what is wrong
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
            self.wrong = self._fault(f"a call raised {error!r}", None)

    # --- what is noted -----------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def note(self, what: str, number: int | None = None) -> None:
        """Write what happens into the log."""
        self._log.append((self.now(), what, number))

    def _fault(self, what: str, sent: Sent | None) -> WrongError:
        number = None if sent is None else sent.number
        lines = [
            f"{at - self._log[0][0]:7.2f} {text}" + ("" if of is None else f" {of}")
            for at, text, of in self._log
            if of is None or of == number
        ]
        whose = "" if sent is None else f", {sent.id!r}"
        where = f"{self.kind}, {self.partitions} partitions, seed {self.seed!r}"
        return WrongError("\n  ".join([f"{what}{whose} ({where})", *lines[-40:]]))

    def of_partition(self, partition: int) -> list[Sent]:
        """Return the messages of a partition that are known to be stored."""
        return [each for each in self.messages if each.id is not None and each.id.partition == partition]

    def on_shown(self, sent: Sent, message_id: MessageId, worker: Worker) -> None:
        """Note that a message is shown."""
        self.note(f"shown to {worker.number}:", sent.number)
        sent.id = message_id
        sent.shown.append(self.now())
        if sent.gone_at is not None and (many := sent.shown_since(sent.gone_at + TOLD_WITHIN)) > 1:
            self.wrong = self.wrong or self._fault(f"shown {many} times after it was gone", sent)

    def on_acked(self, sent: Sent, replay: int) -> None:
        """Note that a worker's acknowledgement is confirmed, which began after a replay."""
        self.note("acked", sent.number)
        is_certain = replay == self.replays[sent.partition]
        sent.acked_in = replay if is_certain else None
        sent.is_doubtful |= not is_certain
        if is_certain and sent.gone_at is None:
            sent.gone_at = self.now()

    async def publish(self, topic: str, data: bytes, **_: Any) -> MessageId:
        """Publish a dead letter; now and then that fails."""
        del topic
        sent = self.messages[int(data.split()[0])]
        self.note("dead letter", sent.number)
        sent.is_letter = True
        if sent.gone_at is not None and self.now() - sent.gone_at > GRACE:
            self.wrong = self.wrong or self._fault("a dead letter of what was gone", sent)
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
            await worker.ack_through(number)

    async def _seek(self, worker: Worker) -> None:
        position: MessageId | int = 0
        stored = [each.id for each in self.messages if each.id is not None and not each.is_deleted]
        if stored and self._random.random() < 0.7:
            position = self._random.choice(stored)
            if position.is_chunked or position.batch_index >= 0:
                position = MessageId(position.ledger, position.entry, position.partition, topic=position.topic)
        self.note(f"seek at {worker.number} to {position!r}")
        await self._replay(worker.seek(position), position.partition if isinstance(position, MessageId) else None)

    async def _reset(self, _: Worker) -> None:
        self.note("reset-cursor to the beginning")
        await self._replay(self._admins(lambda topic: self._admin.reset_cursor(topic, NAME, 1)))

    async def _clear(self, _: Worker) -> None:
        known = [each for each in self.messages if each.is_reported]
        self.note("clear-backlog")
        await self._admins(lambda topic: self._admin.clear(topic, NAME))
        self._gone_op_at = now = self.now()
        for each in known:
            if each.gone_at is None:
                each.gone_at = now

    async def _skip(self, _: Worker) -> None:
        self.note("skip 5")
        await self._admins(lambda topic: self._admin.skip(topic, NAME, 5))
        self._gone_op_at = self.now()

    async def _expire(self, _: Worker) -> None:
        self.note("expire what is older than 1 s")
        await self._admins(lambda topic: self._admin.expire(topic, NAME, 1))
        self._gone_op_at = self.now() + 1.0  # the broker looks for it after it has answered

    async def _unload(self, _: Worker) -> None:
        self.note("unload")
        for each in self.messages:  # the broker may lose which of a batch are acknowledged
            each.gone_at = None if each.is_member and not each.is_deleted else each.gone_at
        await self._admins(self._admin.unload)

    async def _cut(self, worker: Worker) -> None:
        proxy = self._random.choice([worker.proxy, worker.proxy, self._proxy])
        self.note("cut the producers" if proxy is self._proxy else f"cut {worker.number}")
        proxy.cut()
        self._cut_at = self.now()

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
        self.replays[-1] += 1
        await asyncio.to_thread(self._admin.delete, self.topic)
        with suppress(AdminError):  # a client was faster
            await self._make_topic()
        for each in self.messages:
            each.is_deleted = True
            each.gone_at = self.now()
        for worker in self.workers:  # there is nothing left to acknowledge, which is as good
            for number in list(worker.hand):
                self._begin(worker.ack(number))

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

    async def _replay(self, call: Coroutine[Any, Any, None], partition: int | None = None) -> None:
        """Do what shows messages again, of one partition or of all."""
        self._forget_gone(partition)
        await call
        self._forget_gone(partition)
        self._gone_op_at = self._replayed_at = self.now()

    def _forget_gone(self, partition: int | None) -> None:
        for at in range(-1, self.partitions):
            self.replays[at] += partition in {None, at}
        for each in self.messages:
            if not each.is_deleted and partition in {None, each.partition}:
                each.is_doubtful |= each.gone_at is not None and self.now() - self._cut_at < ACK_MEMORY
                each.gone_at = each.acked_in = None

    # --- the oracle --------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [f"{self.topic}-partition-{at}" for at in range(self.partitions)] or [self.topic]

    async def _unacked(self) -> list[Sent]:
        """Ask the broker for those of which nothing is acknowledged; which of a batch are it does not tell."""
        acked = [acked_by(await asyncio.to_thread(self._cursor, name)) for name in self._names()]
        return [each for each in self._known() if not any(map(acked[max(each.partition, 0)], places_of(each)))]

    def _known(self) -> list[Sent]:
        return [each for each in self.messages if each.id is not None and not each.is_deleted]

    def _cursor(self, name: str) -> dict[str, Any]:
        with suppress(AdminError, KeyError):  # it moves, or nobody has subscribed to the new one yet
            cursor: dict[str, Any] = self._admin.internal_stats(name)["cursors"][NAME]
            return cursor
        return {"markDeletePosition": "-1:-1", "individuallyDeletedMessages": ""}

    async def _settled(self, timeout: float) -> None:
        """Wait until no call is under way."""
        calls = [task for task in self._calls if not task.done()]
        if calls:
            _, late = await asyncio.wait(calls, timeout=timeout)
            if late:
                raise self._fault(f"calls that have not ended: {late}", None)

    async def _judge(self) -> None:
        self.note("rest")
        await self._settled(patience(10))
        began_at = self.now()
        while True:
            if self.wrong is not None:
                raise self.wrong
            unacked = await self._unacked()
            hidden = [each for each in unacked if not self._is_shown(each)]
            if not hidden:
                break
            late = [each for each in hidden if self.now() > began_at + patience(max(DELAYS) + GRACE + each.extra_delay)]
            if late:
                raise self._fault("unacknowledged, and shown to nobody", late[0])
            await asyncio.sleep(0.2)
        self._judge_gone({each.number for each in unacked})

    def _is_shown(self, sent: Sent) -> bool:
        if any(sent.number in worker.hand for worker in self.workers):
            return True
        is_acked = sent.acked_in == self.replays[sent.partition]
        return sent.is_member and (is_acked or sent.is_letter or sent.is_doubtful)

    def _judge_gone(self, unacked: set[int]) -> None:
        now = self.now()
        for each in self._known():
            if each.is_chunked or each.number in unacked or each.gone_at is not None:
                continue  # chunked: a part of it may have been skipped
            if not each.is_letter and self._gone_op_at > self._replayed_at:
                many = each.shown_since(self._gone_op_at + TOLD_WITHIN)
                if many > 1:
                    raise self._fault(f"shown {many} times after it was gone", each)
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
                first = next(iter(unacked or self._known_to_workers()), None)
                hands = [list(worker.hand) for worker in self.workers]
                what = (
                    f"all is acknowledged, but {len(unacked)} messages at the broker, {hands} in hand, {left} in memory"
                )
                raise self._fault(what, first)
        await self._check_stored()

    def _known_to_workers(self) -> list[Sent]:
        """Return what is in the consumers' memory."""
        known = {each for worker in self.workers for each in worker.consumer._states._records}
        return [each for each in self.messages if each.id in known]

    async def _check_stored(self) -> None:
        """Read the whole topic, and compare it with what was reported."""
        wanted = {each.number: each for each in self.messages if each.is_reported and not each.is_deleted}
        if not wanted:
            return
        found: set[int] = set()
        name = f"reader-{len(self._log)}"
        async with (
            Client(self.url) as client,
            client.subscribe(self.topic, name, initial_position="earliest") as reader,
        ):
            with suppress(TimeoutError):
                while not wanted.keys() <= found:
                    message = await reader.receive(patience(3))
                    found.add(int(message.data.split()[0]))
        lost = sorted(wanted.keys() - found)
        if lost:
            raise self._fault(f"{len(lost)} messages were reported as stored, and are not", wanted[lost[0]])


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
