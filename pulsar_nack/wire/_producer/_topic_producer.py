"""The producer of one topic or partition, which stays connected whatever happens to connections and brokers.

States: new, connected (there is a session), away (there is none, and a task tries to get one), failed (the topic was
terminated, or another producer has taken our place), closed.

A message goes from a batch that is being filled (with batching), to *waiting*, to *sent* when it was written to the
session's connection, and leaves with its receipt. Receipts come in the order of sending. When a session ends, what was
sent without a receipt goes back to waiting, in order, and is sent again in the next session, under the same name and
with the same sequence ids: a broker with deduplication drops what it has, without it such messages may be there twice.
Of a message that was cut up all parts go again, with the uuid that they had: brokers hand out nothing more on Shared
behind parts that lack the first one, and consumers take parts that they get again for the same message.

Whatever does not fit in with this order ends the session, so that all that is unconfirmed is sent again. Sessions in
which nothing is confirmed are begun at longer and longer intervals, until ``send_timeout`` ends what waits.

A broker with deduplication says at the beginning of a session up to which sequence id it has *had* messages of this
producer. It compares the first sequence id of a batch, so a batch that begins at or below that id and ends above it is
divided. Of a message in chunks it compares the last one: of a message that it has had, only that chunk is sent again,
to get its receipt, and nothing is stored. The broker may have had a message that is not stored yet, and then refuses
to say; the producer asks again in another session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from ...errors import (
    BrokerError,
    BrokerRefusedError,
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    RequestTimeoutError,
)
from .. import _pulsar_pb2 as pb
from .._connection._core import Core
from .._connection._refusals import as_text, is_busy, is_transient, refused
from .._protocol._topics import split_partition
from ._batching import Batches
from ._operations import Encoding, Operation, batch, divided, single
from ._options import ProducerOptions
from ._outgoing import Outgoing
from ._session import ProducerSession

_CLOSE_TIMEOUT_S: Final = 5.0
_FINAL: Final = frozenset({"TopicTerminatedError", "ProducerFenced"})
"""What the broker refuses with for good."""

_SEND_AGAIN: Final = frozenset({"ChecksumError", "ProducerBlockedQuotaExceededError"})
"""What a message is refused with that may be taken when it is sent again, besides what is transient anyway."""

_LASTING_S: Final = 1.0
"""Sessions that end sooner, with nothing confirmed, are begun at longer and longer intervals."""

_LOG: Final = logging.getLogger("pulsar_nack.wire")


class TopicProducer:
    """Produces to one topic or partition; all calls in the client's loop.

    :param core: the client's
    :param topic: the full name, of a partition too
    :param on_done: called with a message whose receipt has its result
    """

    def __init__(self, core: Core, topic: str, options: ProducerOptions, on_done: Callable[[Outgoing], None]) -> None:
        self.topic = topic
        self.last_error: Exception | None = None
        self.failed_attempts = 0
        """How often it could not connect again."""
        self._partition = split_partition(topic)[1]
        self._is_persistent = not topic.startswith("non-persistent:")
        self._core = core
        self._loop = core.loop
        self._options = options
        self._on_done = on_done
        self._timeout = None if options.send_timeout is None else options.send_timeout.total_seconds()
        self._batches = Batches(options.batch_max_messages, options.batch_max_bytes, by_key=options.batch_by_key)
        self._batch_timer: asyncio.TimerHandle | None = None
        self._name = options.name
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._had_at_first = -1
        self._had = -1
        """The highest sequence id that the broker had when the session began; -1: none."""
        self._next_sequence_id = -1
        self._last_id = -1
        """That of the last message that is under way or confirmed here, which the next one has to exceed."""
        self._confirmed_id = -1
        self._spoiled_id = -1
        """The highest one that was given up in this session after it had been sent."""
        self._encoding: Encoding
        self._waiting: deque[Operation] = deque()
        self._sent: deque[Operation] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._session: ProducerSession | None = None
        self._moved_to: str | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits for what was sent up to a sequence id."""
        self._began: tuple[float, int] = (0.0, -1)
        self._short_lived = 0
        self._is_over = False
        self._failure: Exception | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closing else "connected" if self.is_connected else "not connected"
        return f"<TopicProducer of {self.topic} as {self._name!r}, {state}>"

    @property
    def is_connected(self) -> bool:
        """Return whether the broker knows it now."""
        return self._session is not None

    @property
    def last_sequence_id(self) -> int:
        """Return that of the last message that is confirmed, also of an earlier producer of this name; -1: none."""
        return max(self._had_at_first, self._confirmed_id)

    @property
    def name(self) -> str:
        """Return its name, which the broker made up unless it was given."""
        return self._name or ""

    @property
    def is_filling(self) -> bool:
        """Return whether there is a batch that takes more messages."""
        return bool(self._batches)

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, ends_at: float | None = None) -> None:
        """Connect. After a temporary failure it tries again, until ``ends_at``, or for as long as a request may take.

        :param ends_at: time of the loop
        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: it cannot be reached
        :raises ClosedError: it is closed
        """
        await self._core.patiently(self._try_to_open, ends_at=ends_at)

    async def _try_to_open(self) -> None:
        self.check_open()
        if self._session is None:
            await self._connect()

    async def aclose(self) -> None:
        """Send what there is, wait for its receipts, a few seconds at most, and close. Idempotent."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"pulsar_nack.wire closing {self.topic}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        limit = min(_CLOSE_TIMEOUT_S, self._core.options.request_timeout.total_seconds())
        try:
            async with asyncio.timeout(limit):
                await self.flush()
                if self._session is not None:
                    await self._session.end()
        except TimeoutError:
            _LOG.warning("%s: the broker has not confirmed all messages within %g s", self.topic, limit)
        finally:
            await self._end()

    async def _end(self) -> None:
        self._is_over = True
        session, self._session = self._session, None
        if session is not None:
            session.drop()
        tasks = [task for task in (self._connecting, self._draining) if task is not None]
        for task in tasks:
            task.cancel()
        self._fail_all(ClosedError("the producer"))
        if tasks:
            await asyncio.wait(tasks)

    def check_open(self) -> None:
        """Raise why it takes no messages, if so.

        :raises ClosedError: it is closed
        :raises BrokerRefusedError: the broker does not take any for good
        """
        if self._closing is not None:
            raise ClosedError("the producer")
        if self._failure is not None:
            raise self._failure

    # --- being connected -------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        moved_to, self._moved_to = self._moved_to, None
        connection = await self._core.connection(self.topic, moved_to)
        session = await ProducerSession.begin(
            connection,
            self,
            self.topic,
            self._options,
            name=self._name,
            epoch=self._epoch,
            topic_epoch=self._topic_epoch,
        )
        if self._is_over:
            session.drop()
            raise ClosedError("the producer")
        self._enter(session)

    def _enter(self, session: ProducerSession) -> None:
        answer = session.answer
        self._session = session
        self.last_error = None
        self._epoch += 1
        self._name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        self._had = answer.last_sequence_id
        self._spoiled_id = -1
        self._began = (self._loop.time(), self._confirmed_id)
        if self._next_sequence_id < 0:
            self._had_at_first = self._had
            first = self._options.initial_sequence_id
            self._next_sequence_id = self._had + 1 if first is None else first
        most = session.connection.max_message_bytes
        self._batches.max_bytes = min(self._options.batch_max_bytes, most)
        parts = min(self._options.chunk_max_bytes or most, most) if self._options.chunking else None
        version = answer.schema_version if self._options.schema_info is not None else b""
        self._encoding = Encoding(self.name, self._options.compression_type, most, parts, version)
        self._pump()

    def on_session_over(self, session: ProducerSession, error: Exception, assigned_url: str | None) -> None:
        """Connect again, and send again what is not confirmed."""
        if session is not self._session:
            return
        self._session = None
        self.last_error = error
        self._moved_to = assigned_url
        began_at, confirmed = self._began
        has_lasted = self._confirmed_id != confirmed or self._loop.time() - began_at >= _LASTING_S
        self._short_lived = 0 if has_lasted else self._short_lived + 1
        self._take_back()
        if self._draining is not None:
            self._draining.cancel()
        self._connect_again()

    def _take_back(self) -> None:
        """Queue unconfirmed messages again; of a message in chunks all of them."""
        again: list[Operation] = []
        for each in (*self._sent, *islice(self._waiting, 1)):  # which may be a later part of a message
            if each.parts is not None and not (again and again[-1].parts is each.parts):
                again += each.parts_before()
            again.append(each)
        if self._waiting:
            self._waiting.popleft()
        self._waiting.extendleft(reversed(again))
        self._sent.clear()

    def _restart(self, error: Exception) -> None:
        """End the session and begin another."""
        session = self._session
        if session is not None:
            _LOG.warning("%s: sending again what is not confirmed: %s", self.topic, error)
            session.drop()
            self.on_session_over(session, error, None)

    def _connect_again(self) -> None:
        is_closed = self._closing is not None and not (self._waiting or self._batches)
        if self._connecting is None and self._failure is None and not is_closed:
            task = self._loop.create_task(self._reconnect(), name=f"pulsar_nack.wire producing to {self.topic}")
            self._connecting = task
            task.add_done_callback(self._on_reconnected)

    def _on_reconnected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if self._is_over:
            return
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is None:
            if self._session is None:
                self._connect_again()
            return
        if not isinstance(fault, ClosedError):
            _LOG.error("%s: does not connect again: %r", self.topic, fault)
        error = ClosedError("the producer")
        error.__cause__ = fault
        self._fail(error)

    async def _reconnect(self) -> None:
        await self._core.reconnect(
            self._connect,
            lambda: self._session is not None or self._failure is not None or self._is_over,
            self._note_failure,
            attempt=self._short_lived,
            at_once=self._moved_to is not None,
        )

    def _note_failure(self, error: Exception) -> None:
        self.failed_attempts += 1
        if repr(error) != repr(self.last_error):
            _LOG.warning("%s: cannot produce again yet: %s", self.topic, as_text(error))
        self.last_error = error
        if not isinstance(error, BrokerRefusedError):
            return  # it may pass: a connection, or credentials that are not there at the moment
        if error.code in _FINAL:
            self._fail(error)
        elif not is_transient(error) and not is_busy(error) and error.code != "ProducerBlockedQuotaExceededError":
            self._fail_all(error)

    def _fail(self, error: Exception) -> None:
        """Take no messages any more."""
        self._failure = error
        self._fail_all(error)

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, message: Outgoing) -> None:
        """Send a message, or put it into a batch; its receipt is a future that gets the result.

        :raises InvalidArgumentError: it is too large, or its sequence id is not above that of the message before
        :raises MissingExtraError: its compression is not installed
        """
        by_key = self._options.batch_by_key
        if not self._options.batching or message.goes_alone or (by_key and message.sequence_id is not None):
            self.send_batches()
            before = self._number(message)
            try:
                self._send_single(message, before)
            except BaseException:
                self._free_ids()
                raise
            return
        if not by_key:  # else they are in the order of the batches
            self._number(message)
        for full in self._batches.add(message):
            self._send_batch(full)
        if not self._batches:
            self._stop_batch_timer()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(self._options.batch_delay.total_seconds(), self._on_batch_timer)

    def _on_batch_timer(self) -> None:
        self._batch_timer = None
        self.send_batches()

    def _stop_batch_timer(self) -> None:
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None

    def send_batches(self) -> None:
        """Send all batches as they are."""
        if self._batches:
            self._stop_batch_timer()
            for messages in self._batches.close_all():
                self._send_batch(messages)

    def _send_single(self, message: Outgoing, before: int = -1) -> None:
        self._waiting.extend(single(message, self._encoding, self._ends_at(), before=before))
        message.data = b""  # it is in what is sent
        self._arm()
        self._pump()

    def _send_batch(self, messages: list[Outgoing]) -> None:
        try:
            if self._options.batch_by_key:
                for message in messages:
                    self._number(message)
            if len(messages) == 1:
                self._send_single(messages[0])
                return
            self._waiting.append(batch(messages, self._encoding, self._ends_at()))
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            self._free_ids()
            self._fail_batch(messages, error)
            return
        for message in messages:
            message.data = b""
        self._arm()
        self._pump()

    def _number(self, message: Outgoing) -> int:
        """Give a message the next sequence id, or take the one that it was given; return that of the one before."""
        number = message.sequence_id
        if number is None:
            message.sequence_id = number = self._next_sequence_id
        elif number <= self._last_id:
            expected = f"more than {self._last_id}, that of the message before it: they have to grow"
            raise InvalidArgumentError("sequence_id", number, expected)
        elif number <= self._spoiled_id:  # no receipt for the former message is to be taken for one for this
            self._restart(ConnectionLostError(f"sequence id {number} is used again"))
        before = min(max(self._last_id, self._had_at_first), number - 1)
        self._last_id = number
        if number >= self._next_sequence_id:
            self._next_sequence_id = number + 1
        return before

    def _free_ids(self) -> None:
        """Let the sequence ids at the end that have failed be used again."""
        if not self._batches:
            queue = self._waiting or self._sent
            self._last_id = queue[-1].highest_sequence_id if queue else self._confirmed_id

    def _pump(self) -> None:
        """Write what waits, as long as the connection takes it."""
        session = self._session
        if session is None or self._draining is not None:
            return
        while self._waiting and session is self._session:
            if session.connection.is_congested:
                self._pump_later(session)
                return
            operation = self._waiting.popleft()
            if operation.sequence_id <= self._had and not self._goes_as_it_is(operation):
                continue
            self._sent.append(operation)
            session.send(operation)

    def _goes_as_it_is(self, operation: Operation) -> bool:
        """Return whether to send something that the broker has had in part at least; else divide it, or pass it by."""
        if operation.is_part:
            return operation.is_last_part
        if operation.highest_sequence_id <= self._had:
            return True
        self._waiting.extendleft(reversed(divided(operation, self._had, self._encoding)))
        return False

    def _pump_later(self, session: ProducerSession) -> None:
        async def drain() -> None:
            with contextlib.suppress(ConnectionLostError):
                await session.connection.drained()

        def drained(_: asyncio.Task[None]) -> None:
            self._draining = None
            self._pump()

        self._draining = self._loop.create_task(drain(), name=f"pulsar_nack.wire writing to {self.topic}")
        self._draining.add_done_callback(drained)

    # --- being confirmed -------------------------------------------------------------------------------------------

    def on_receipt(self, session: ProducerSession, receipt: pb.CommandSendReceipt) -> None:
        """Tell the messages that were sent first that they are stored."""
        if session is not self._session or not self._sent:
            return
        head = self._sent[0]
        place = receipt.message_id
        ledger = _signed(place.ledgerId)
        if receipt.sequence_id != head.sequence_id:
            if receipt.sequence_id > head.sequence_id:
                self._overtaken(receipt.sequence_id, ledger, _signed(place.entryId))
            return  # a lower one: of what was given up
        if (head.parts is not None or ledger < 0) and self._is_in_doubt(head, has_had=ledger < 0):
            told = f"the broker's answer does not tell whether message {head.sequence_id} is stored"
            self._give_up(head, BrokerError(f"{self.topic}: {told}"))
            return
        self._sent.popleft()
        self._stored(head, ledger, _signed(place.entryId))

    def _stored(self, operation: Operation, ledger: int, entry: int) -> None:
        if operation.messages:
            self._confirmed_id = operation.highest_sequence_id
        operation.stored(ledger, entry, self._partition, self.topic)
        self._done(operation.messages)
        if self._flushes:
            self._end_flushes()
        self._arm_if_idle()

    def _is_in_doubt(self, operation: Operation, *, has_had: bool) -> bool:
        """Return whether a receipt says nothing of what happened to a message.

        That the broker has had it proves nothing after a later message was confirmed first. Of a message that was cut
        up it has either had all parts when the session began, and says so of the last one, or stores all of them.
        """
        if not self._is_persistent:
            return False  # where no message has a place
        if has_had and operation.is_overtaken:
            return True
        return operation.is_part and has_had is not (operation.sequence_id <= self._had)

    def _overtaken(self, sequence_id: int, ledger: int, entry: int) -> None:
        """Take a receipt that comes before that of an earlier message, and find out about that in another session."""
        head = self._sent[0].sequence_id
        for each in list(self._sent):
            if each.sequence_id >= sequence_id:
                if each.sequence_id == sequence_id and not each.is_part:
                    self._sent.remove(each)
                    self._stored(each, ledger, entry)
                break
            for part in each.parts or (each,):
                part.is_overtaken = True
        self._restart(ConnectionLostError(f"a receipt for {sequence_id} before {head}"))

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        """Send again what may be taken then; tell the messages otherwise."""
        if session is not self._session:
            return
        refusal = refused(error.error, error.message, session.connection.without_secrets)
        if refusal.code in _FINAL:
            self._fail(refusal)
        elif is_transient(refusal) or refusal.code in _SEND_AGAIN:
            self._restart(refusal)
        else:
            named = error.sequence_id  # brokers name a batch by its last message
            found = next((each for each in self._sent if named in {each.sequence_id, each.highest_sequence_id}), None)
            if found is not None:
                self._give_up(found, refusal)

    def _give_up(self, operation: Operation, error: Exception) -> None:
        """Fail an operation, and if it is a part of a message, all other parts."""
        message = operation.message
        if message is None:
            gone, messages = [operation], operation.messages
        else:
            gone = [each for queue in (self._sent, self._waiting) for each in queue if each.message is message]
            messages = [message]
        if self._session is not None:
            self._spoiled_id = max(self._spoiled_id, operation.highest_sequence_id)
        for each in gone:
            _remove(each, self._sent if each in self._sent else self._waiting)
        self._free_ids()
        self._fail_batch(messages, error)
        if self._flushes:
            self._end_flushes()
        self._arm_if_idle()

    def _done(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self._on_done(message)

    def _fail_all(self, error: Exception) -> None:
        self._stop_batch_timer()
        for messages in self._batches.close_all():
            self._fail_batch(messages, error)
        self._free_ids()
        while queue := self._sent or self._waiting:
            self._give_up(queue[0], error)

    def _fail_batch(self, messages: Sequence[Outgoing], error: Exception) -> None:
        for message in messages:
            message.failed(error)
        self._done(messages)

    async def flush(self) -> None:
        """Send all batches, and return when what was sent so far is confirmed or failed."""
        self.send_batches()
        if not self._sent and not self._waiting:
            return
        flush = self._last_id, self._loop.create_future()
        self._flushes.append(flush)
        try:
            await flush[1]
        finally:
            self._flushes.remove(flush)

    def _end_flushes(self) -> None:
        queue = self._sent or self._waiting
        for last_id, over in self._flushes:
            if not over.done() and (not queue or queue[0].sequence_id > last_id):
                over.set_result(None)

    # --- time ------------------------------------------------------------------------------------------------------

    def _ends_at(self) -> float | None:
        return None if self._timeout is None else self._loop.time() + self._timeout

    def _arm(self) -> None:
        """Have a timer at the time of what was sent first, no earlier timer being there; none when there is nothing."""
        queue = self._sent or self._waiting
        if not queue:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None and queue[0].ends_at is not None:
            self._timer = self._loop.call_at(queue[0].ends_at, self._expire)

    def _arm_if_idle(self) -> None:
        if not self._sent and not self._waiting:
            self._arm()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while queue := self._sent or self._waiting:
            ends_at = queue[0].ends_at
            if ends_at is None or ends_at > now:
                break
            reason = "" if self.last_error is None else f"; {self.last_error}"
            self._give_up(
                queue[0], RequestTimeoutError(f"{self.topic}: not confirmed within {self._timeout:g} s{reason}")
            )
        self._arm()


def _remove(operation: Operation, queue: deque[Operation]) -> None:
    if queue[0] is operation:  # as it mostly is
        queue.popleft()
    else:
        queue.remove(operation)


def _signed(value: int) -> int:
    """Return a number of the protocol, in which the largest stands for -1."""
    return -1 if value == 2**64 - 1 else value
