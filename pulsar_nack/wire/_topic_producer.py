"""The producer of one topic or partition, which stays connected whatever happens to connections and brokers.

States: new, connected (there is a session), away (there is none, and a task tries to get one), failed (the topic was
terminated, or another producer has taken our place), closed.

A message goes from a batch that is being filled (with batching), to *waiting*, to *sent* when it was written to the
session's connection, and leaves with its receipt. Receipts come in the order of sending. When a session ends, what was
sent without a receipt goes back to waiting, in order, and is sent again in the next session, under the same name and
with the same sequence ids: a broker with deduplication drops what it has, without it such messages may be there twice.

Whatever does not fit in with this order ends the session, so that all that is unconfirmed is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ..errors import BrokerError, BrokerRefusedError, ClosedError, ConnectionLostError, RequestTimeoutError
from . import _pulsar_pb2 as pb
from ._batching import Batches
from ._core import Core
from ._operations import Encoding, Operation, batch, single
from ._outgoing import Outgoing
from ._producer_options import ProducerOptions
from ._producer_session import ProducerSession
from ._refusals import is_busy, is_transient, refused
from ._topics import split_partition

_CLOSE_TIMEOUT_S: Final = 5.0
_FINAL: Final = frozenset({"TopicTerminatedError", "ProducerFenced"})
"""What the broker refuses with for good."""

_SEND_AGAIN: Final = frozenset({"ChecksumError", "ProducerBlockedQuotaExceededError"})
"""What a message is refused with that may be taken when it is sent again, besides what is transient anyway."""

_LOG: Final = logging.getLogger(__name__)


class TopicProducer:
    """Produces to one topic or partition; all calls in the client's loop.

    :param core: the client's
    :param topic: the full name, of a partition too
    :param on_done: called with a message whose receipt has its result
    """

    def __init__(self, core: Core, topic: str, options: ProducerOptions, on_done: Callable[[Outgoing], None]) -> None:
        self.topic = topic
        self.last_sequence_id = -1
        """That of the last message that is confirmed, also of an earlier producer of this name; -1: none."""
        self.last_error: Exception | None = None
        self._partition = split_partition(topic)[1]
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
        self._next_sequence_id = -1
        self._encoding: Encoding
        self._waiting: deque[Operation] = deque()
        self._sent: deque[Operation] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._session: ProducerSession | None = None
        self._moved_to: str | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
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
    def name(self) -> str:
        """Return its name, which the broker made up unless it was given."""
        return self._name or ""

    @property
    def is_filling(self) -> bool:
        """Return whether there is a batch that takes more messages."""
        return bool(self._batches)

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. What may pass by itself is tried again, for as long as a request may take.

        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: it cannot be reached
        :raises ClosedError: it is closed
        """
        self.check_open()
        await self._core.tried(self._connect, lambda: self.is_connected, self.check_open)

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
        if self._next_sequence_id < 0:
            self.last_sequence_id = answer.last_sequence_id
            first = self._options.initial_sequence_id
            self._next_sequence_id = answer.last_sequence_id + 1 if first is None else first
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
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        if self._draining is not None:
            self._draining.cancel()
        self._connect_again()

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
        if task.cancelled():
            return
        fault = task.exception()
        if fault is not None:
            context = {"message": f"{self!r} does not connect again", "exception": fault, "task": task}
            self._loop.call_exception_handler(context)
            self._fail(ConnectionLostError(f"{self.topic}: not connected any more: {fault!r}"))
        elif self._session is None:
            self._connect_again()

    async def _reconnect(self) -> None:
        backoff = self._core.options.backoff()
        attempt = 0
        while self._session is None and self._failure is None:
            if attempt or self._moved_to is None:
                await asyncio.sleep(float(backoff(attempt)))
            attempt += 1
            try:
                await self._connect()
            except BrokerError as error:
                self._note_failure(error)

    def _note_failure(self, error: BrokerError) -> None:
        if repr(error) != repr(self.last_error):
            _LOG.warning("%s: cannot produce again yet: %s", self.topic, error)
        self.last_error = error
        code = error.code if isinstance(error, BrokerRefusedError) else ""
        if code in _FINAL:
            self._fail(error)
        elif not is_transient(error) and not is_busy(error) and code != "ProducerBlockedQuotaExceededError":
            self._fail_all(error)

    def _fail(self, error: Exception) -> None:
        """Take no messages any more."""
        self._failure = error
        self._fail_all(error)

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, message: Outgoing) -> None:
        """Send a message, or put it into a batch; its receipt is a future that gets the result.

        :raises InvalidArgumentError: it is too large
        :raises MissingExtraError: its compression is not installed
        """
        if not self._options.batching or message.goes_alone or self._is_out_of_order(message):
            self.send_batches()
            self._send_single(message)
            return
        for full in self._batches.add(message):
            self._send_batch(full)
        if not self._batches:
            self._stop_batch_timer()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(self._options.batch_delay.total_seconds(), self._on_batch_timer)

    def _is_out_of_order(self, message: Outgoing) -> bool:
        """Return whether a batch by key would break the order of the sequence ids that the user gives."""
        return self._options.batch_by_key and message.sequence_id is not None

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

    def _send_single(self, message: Outgoing) -> None:
        self._waiting.extend(single(message, self._sequence_id(message), self._encoding, self._ends_at()))
        message.data = b""  # it is in what is sent
        self._arm()
        self._pump()

    def _send_batch(self, messages: list[Outgoing]) -> None:
        try:
            if len(messages) == 1:
                self._send_single(messages[0])
                return
            ids = [self._sequence_id(message) for message in messages]
            self._waiting.append(batch(messages, ids, self._encoding, self._ends_at()))
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            self._fail_batch(messages, error)
            return
        for message in messages:
            message.data = b""
        self._arm()
        self._pump()

    def _sequence_id(self, message: Outgoing) -> int:
        given = message.sequence_id
        if given is None:
            given = self._next_sequence_id
        self._next_sequence_id = max(self._next_sequence_id, given + 1)
        return given

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
            self._sent.append(operation)
            session.send(operation)

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
        if receipt.sequence_id != head.sequence_id:
            if receipt.sequence_id > head.sequence_id:
                self._restart(ConnectionLostError(f"a receipt for {receipt.sequence_id} before {head.sequence_id}"))
            return  # a lower one: of what was given up
        self._sent.popleft()
        self.last_sequence_id = max(self.last_sequence_id, head.highest_sequence_id)
        place = receipt.message_id
        head.stored(_signed(place.ledgerId), _signed(place.entryId), self._partition, self.topic)
        self._done(head.messages)
        head.over()
        self._arm_if_idle()

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        """Send again what may be taken then; tell the messages otherwise."""
        if session is not self._session:
            return
        refusal = refused(error.error, error.message)
        if refusal.code in _FINAL:
            self._fail(refusal)
        elif is_transient(refusal) or refusal.code in _SEND_AGAIN:
            self._restart(refusal)
        else:
            found = next((each for each in self._sent if each.sequence_id == error.sequence_id), None)
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
        for each in gone:
            _remove(each, self._sent if each in self._sent else self._waiting)
        for each_message in messages:
            each_message.failed(error)
        self._done(messages)
        for each in gone:
            each.over()
        self._arm_if_idle()

    def _done(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self._on_done(message)

    def _fail_all(self, error: Exception) -> None:
        self._stop_batch_timer()
        for messages in self._batches.close_all():
            self._fail_batch(messages, error)
        while queue := self._sent or self._waiting:
            self._give_up(queue[0], error)

    def _fail_batch(self, messages: Sequence[Outgoing], error: Exception) -> None:
        for message in messages:
            message.failed(error)
        self._done(messages)

    async def flush(self) -> None:
        """Send all batches, and return when what was sent so far is confirmed or failed."""
        self.send_batches()
        queue = self._waiting or self._sent
        if queue:
            await queue[-1].wait_over(self._loop)

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
