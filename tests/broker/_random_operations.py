"""Random operations on a broker: two workers on one subscription, producers, and an administrator.

``_judge.py`` says what must hold; it is checked while all pause, which they do after every few operations.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any, Final

from pulsar_nack import BrokerError, MessageId
from pulsar_nack.consumer._letter_rules import ORIGIN_MESSAGE_ID
from pulsar_nack.wire import Client, ClientOptions, Producer
from tests.broker._admin import AdminError
from tests.broker._broker_state import READER, BrokerState
from tests.broker._judge import REQUESTED_WITHIN, Judge, WrongError
from tests.broker._native import port_of, through
from tests.broker._proxy import TcpProxy
from tests.broker._workers import NAME, Sent, Worker, acked_by, places_of
from tests.patience import patience

DELAYS: Final = (0.0, 0.1, 0.3, 1.0)
ACK_MEMORY: Final = 12.0
"""Seconds after a lost connection in which earlier acknowledgements may hide messages that are replayed on purpose."""
_AT_REST_AFTER: Final = 25
"""Operations between two checks, on average."""
_CHUNK: Final = 1_024


class RandomOperations:
    """One topic and all its users.

    :param kind: the subscription's type: ``shared``, ``failover`` or ``exclusive``
    :param partitions: 0: a topic without partitions
    """

    def __init__(self, urls: tuple[str, str], topic: str, kind: str, partitions: int, seed: str) -> None:
        self.url = urls[0]
        self.topic = topic
        self.kind = kind
        self.partitions = partitions
        self.seed = seed
        self.messages: list[Sent] = []
        self.replays: Counter[int] = Counter()
        """How often the subscription was moved, for each partition."""
        self.workers: list[Worker] = []
        self.wrong: WrongError | None = None
        self.times_stuck = 0
        self.broker_state = BrokerState(urls, topic, partitions)
        self._admin = self.broker_state.admin
        self._random = Random(seed)
        self._skips = kind != "shared" or self._random.random() < 0.5
        """Whether entries are skipped; if not, messages are chunked. The two do not mix on a Shared subscription:

        a broker that is left with only the last chunk tries to deliver it for ever, and delivers nothing else.
        """
        self._log: list[tuple[float, str, int | None]] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._producers: list[Producer] = []
        self._by_id: dict[MessageId, Sent] = {}
        self._proxy: TcpProxy
        self.gone_op_at = 0.0
        """When an operation that acknowledges without a worker last ended."""
        self.replayed_at = 0.0
        """When an operation that replays messages last ended."""
        self._cut_at = -ACK_MEMORY
        self._judge = Judge(self)

    # --- running -----------------------------------------------------------------------------------------------------

    async def run(self, operations: int) -> None:
        """Perform ``operations`` random operations.

        :raises WrongError: says what is wrong
        """
        async with self._open():
            for _ in range(operations):
                await self._one()
                if self._random.random() < 1 / _AT_REST_AFTER:
                    await self._judge.rest()
            await self._judge.end()

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
            subscribers: list[dict[str, Any]] = [
                {},
                {"batching": True, "batch_delay": 0.005},
                {"chunking": True, "chunk_max_bytes": _CHUNK},
            ]
            for options in subscribers:
                producer = client.producer(self.topic, **options)
                self._producers.append(await stack.enter_async_context(producer))
            try:
                yield
            finally:
                for task in self._calls:
                    task.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)

    async def _make_topic(self) -> None:
        with suppress(AdminError):  # a client was faster
            if self.partitions:
                await asyncio.to_thread(self._admin.create_partitions, self.topic, self.partitions)
            else:
                await asyncio.to_thread(self._admin.request, "PUT", self.topic.replace("://", "/"))
        for name in self.broker_state.names:
            await asyncio.to_thread(self._admin.create_subscription, name, READER)

    def begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Start something that may take a worker a while."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.wrong is None:
            self.wrong = self.fault(f"a call raised {error!r}", None)

    # --- records ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def note(self, what: str, number: int | None = None) -> None:
        """Add a line to the log."""
        self._log.append((self.now(), what, number))

    def fault(self, what: str, sent: Sent | None) -> WrongError:
        """Return an error that says what is wrong with a message, with the message's history."""
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

    def stored_as(self, number: int, message_id: MessageId) -> Sent:
        """Return the message with an id; one that was stored twice is another message the second time."""
        found = self._by_id.get(message_id)
        if found is None:
            found = self.messages[number]
            if found.id is not None:
                found = Sent(len(self.messages))
                self.messages.append(found)
                self.note(f"stored once more, from now on {found.number}:", number)
            found.id = message_id
            self._by_id[message_id] = found
        return found

    def on_delivered(self, sent: Sent, worker: Worker) -> None:
        """Record that a message was delivered."""
        self.note(f"delivered to {worker.number}:", sent.number)
        sent.delivered.append(self.now())
        if sent.gone_at is not None and (many := sent.delivered_since(sent.gone_at + REQUESTED_WITHIN)) > 1:
            self.wrong = self.wrong or self.fault(f"delivered {many} times after it was gone", sent)

    def on_acked(self, sent: Sent, replay: int) -> None:
        """Record that a worker's acknowledgement, which began after a replay, was confirmed."""
        self.note("acked", sent.number)
        is_certain = replay == self.replays[sent.partition]
        sent.is_doubtful |= not is_certain
        sent.was_acked = True
        sent.is_shared |= any(sent.number in worker.hand for worker in self.workers)
        if is_certain and sent.gone_at is None and not sent.is_member and not sent.is_shared:
            sent.gone_at = self.now()

    async def publish(self, topic: str, data: bytes | None, *, properties: Mapping[str, str], **_: Any) -> MessageId:
        """Publish a dead letter; now and then this fails."""
        del topic, data
        origin = MessageId(*map(int, properties[ORIGIN_MESSAGE_ID].split(":")))
        sent = self._by_id[origin]
        self.note("dead letter", sent.number)
        sent.is_letter = True
        if sent.gone_at is not None and self.now() - sent.gone_at > REQUESTED_WITHIN:
            self.wrong = self.wrong or self.fault("a dead letter of what was gone", sent)
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
        at = self._random.choices(range(3), [3, 4, 0 if self._skips and self.kind == "shared" else 1])[0]
        for _each in range(self._random.choice((1, 5, 20))):
            self.begin(self._send_one(self._producers[at], at == 2))

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
        self.stored_as(sent.number, message_id).is_reported = True

    def _some(self, worker: Worker) -> list[int]:
        hand = list(worker.hand)
        return self._random.sample(hand, min(len(hand), self._random.choice((1, 1, 3, 10))))

    async def _nack(self, worker: Worker) -> None:
        for number in self._some(worker):
            delay = self._random.choice(DELAYS)
            self.note(f"nack at {worker.number}, {delay} s:", number)
            self.begin(worker.nack(number, delay))

    async def _ack(self, worker: Worker) -> None:
        for number in self._some(worker):
            self.note(f"ack at {worker.number}:", number)
            self.begin(worker.ack(number))

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
            ledger, entry = position.parts[0] if position.is_chunked else position[:2]
            position = MessageId(ledger, entry, position.partition, topic=position.topic)
        self.note(f"seek at {worker.number} to {position!r}")
        await self._replay(worker.seek(position), position.partition if isinstance(position, MessageId) else None)

    async def _reset(self, _: Worker) -> None:
        self.note("reset-cursor to the beginning")
        await self._replay(self._admins(lambda topic: self._admin.reset_cursor(topic, NAME, 1)))

    async def _clear(self, _: Worker) -> None:
        known = [each for each in self.messages if each.is_reported and each.gone_at is None]
        self.note("clear-backlog")
        await self._admins(lambda topic: self._admin.clear(topic, NAME))
        self.gone_op_at = now = self.now()
        acked = list(map(acked_by, await self.broker_state.cursors()))
        for each in known:
            if each.is_deleted or all(map(acked[max(each.partition, 0)], places_of(each))):
                each.gone_at = now

    async def _skip(self, _: Worker) -> None:
        if not self._skips:
            return
        self.note("skip 5")
        await self._admins(lambda topic: self._admin.skip(topic, NAME, 5))
        self.gone_op_at = self.now()

    async def _expire(self, _: Worker) -> None:
        if not self._skips:
            return
        self.note("expire what is older than 1 s")
        await self._admins(lambda topic: self._admin.expire(topic, NAME, 1))
        self.gone_op_at = self.now() + 1.0  # the broker looks for it after it has answered

    async def _unload(self, _: Worker) -> None:
        self.note("unload")
        for each in self.messages:  # the broker may lose which messages of a batch are acknowledged
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
        await self._judge.storage()
        self.note("delete the topic, and make it again")
        self.replays[-1] += 1
        await asyncio.to_thread(self._admin.delete, self.topic)
        await self._make_topic()
        for each in self.messages:
            each.is_deleted = True
            each.gone_at = self.now()
        for worker in self.workers:  # there is nothing left to acknowledge, which is just as good
            for number in list(worker.hand):
                self.begin(worker.ack(number))

    async def _admins(self, do: Callable[[str], None]) -> None:
        for topic in self.broker_state.names:
            for _ in range(20):
                try:
                    await asyncio.to_thread(do, topic)
                except AdminError as error:
                    self.note(str(error)[:100])
                    if error.status < 500:
                        break
                    await asyncio.sleep(0.2)  # the topic is moving right now
                else:
                    break

    async def _replay(self, call: Coroutine[Any, Any, None], partition: int | None = None) -> None:
        """Replay messages of one partition or of all."""
        self._forget_gone(partition)
        await call
        self._forget_gone(partition)
        self.gone_op_at = self.replayed_at = self.now()

    def _forget_gone(self, partition: int | None) -> None:
        for at in range(-1, self.partitions):
            self.replays[at] += partition in {None, at}
        for each in self.messages:
            if not each.is_deleted and partition in {None, each.partition}:
                each.is_doubtful |= each.gone_at is not None and self.now() - self._cut_at < ACK_MEMORY
                each.gone_at = None

    # --- checks -------------------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until no call is open.

        :raises WrongError: a call does not end, or something went wrong meanwhile
        """
        calls = [task for task in self._calls if not task.done()]
        if calls:
            _, late = await asyncio.wait(calls, timeout=patience(10))
            if late:
                raise self.fault(f"calls that have not ended: {late}", None)
        if self.wrong is not None:
            raise self.wrong

    async def got_moving(self) -> bool:
        """Unload the topic if the broker has stopped delivering it; return whether it had."""
        is_stuck = await self.broker_state.is_stuck()
        if is_stuck:
            self.times_stuck += 1
            self.note("the broker is stuck")
            await self._unload(self.workers[0])
        return is_stuck


Operation = Callable[[RandomOperations, Worker], Coroutine[Any, Any, None]]
_OPERATIONS: Final[dict[str, tuple[float, Operation]]] = {
    "send": (6, RandomOperations._send),
    "nack": (8, RandomOperations._nack),
    "ack": (6, RandomOperations._ack),
    "cumulative ack": (1, RandomOperations._ack_through),
    "seek": (1, RandomOperations._seek),
    "reset": (0.6, RandomOperations._reset),
    "clear": (0.6, RandomOperations._clear),
    "skip": (0.5, RandomOperations._skip),
    "expire": (0.4, RandomOperations._expire),
    "unload": (0.6, RandomOperations._unload),
    "cut": (1, RandomOperations._cut),
    "restart": (0.6, RandomOperations._restart),
    "delete": (0.3, RandomOperations._delete),
}
"""How often each operation happens, relative to the others, and what it does."""
