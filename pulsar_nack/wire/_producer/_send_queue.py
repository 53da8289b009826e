"""The messages of one topic or partition between ``send`` and their receipts.

A message goes from an open batch (with batching) to *unsent*, to *sent* when it was written to the session's
connection, and leaves with its receipt. Receipts come in the order of sending. When a session ends, sent ops without a
receipt go back to unsent, in order, and are sent again in the next session with the same sequence ids: a broker with
deduplication drops those that it has, without it such messages may be stored twice. Of a chunked message all chunks are
sent again with the same uuid: on Shared subscriptions brokers deliver nothing behind chunks that lack the first one,
and consumers accept repeated chunks of the same message. A receipt out of order ends the session, so that all
unconfirmed messages are sent again.

When a session begins, a broker with deduplication names the highest sequence id that it has *received* from this
producer. It compares the first sequence id of a batch, so a batch that begins at or below that id and ends above it is
divided. Of a chunked message it compares that of the last chunk: if it has received the message, only that chunk is
sent again, to get its receipt, and nothing is stored. The broker may have received a message that is not stored yet,
and then refuses to say; the queue asks again in another session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ...errors import BrokerError, ConnectionLostError, InvalidArgumentError, RequestTimeoutError
from .._connection._connection import Connection
from .._connection._context import ClientContext
from .._protocol import _pulsar_pb2 as pb
from .._protocol._compression import LARGE_TO_COMPRESS, compress
from .._protocol._frames import position_of
from .._protocol._topics import split_partition
from ._options import ProducerOptions
from ._outgoing import BatchContainer, OutgoingMessage
from ._send_ops import EntryEncoding, SendOp, encode_again, payload_of, send_ops


class SendQueue:
    """Sends messages in order, again in each session, and resolves their receipts.

    :param topic: the full name, of a partition too
    :param on_done: called with each message whose receipt is done
    :param restart: ends the session with an error and begins another one
    """

    def __init__(
        self,
        topic: str,
        options: ProducerOptions,
        context: ClientContext,
        *,
        on_done: Callable[[OutgoingMessage], None],
        restart: Callable[[Exception], None],
    ) -> None:
        self.confirmed_id = -1
        self.session_error: Exception | None = None
        """Why there is no session, or what the last attempt to get one failed with."""
        self._topic = topic
        self._options = options
        self._loop = loop = context.loop
        self._threads = context.threads
        self._on_done = on_done
        self._restart = restart
        self._partition = split_partition(topic)[1]
        self._timeout = None if options.send_timeout is None else options.send_timeout.total_seconds()
        self._connection: Connection | None = None
        """The connection of the session; None: there is no session."""
        self._writable: asyncio.Future[None] | None = None
        """Set while the connection is too full to write: done when it takes more."""
        self._producer_id = -1
        self._encoding: EntryEncoding
        self.batches = BatchContainer(options, loop, self.send_batches)
        self._unsent: deque[SendOp] = deque()
        self._sent: deque[SendOp] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        """Waiters for all messages up to a sequence id."""
        self._next_id = -1
        self._last_id = -1
        """The sequence id of the last message in flight or confirmed here; the next id must be higher."""
        self._had_id = -1
        """The highest sequence id that the broker had received when the session began; -1: none."""
        self._first_had_id = -1  # of the first session
        self._failed_id = -1
        """The highest sequence id that failed in this session after it had been sent."""

    @property
    def has_unsent(self) -> bool:
        """Return whether messages wait for a session."""
        return bool(self._unsent or self.batches)

    @property
    def last_sequence_id(self) -> int:
        """Return the sequence id of the last confirmed message, also of an earlier producer of this name; -1: none."""
        return max(self._first_had_id, self.confirmed_id)

    # --- sessions --------------------------------------------------------------------------------------------------

    def start(self, connection: Connection, producer_id: int, answer: pb.CommandProducerSuccess) -> None:
        """Send in a new session."""
        options = self._options
        self._connection = connection
        self._producer_id = producer_id
        self.session_error = None
        self._had_id = answer.last_sequence_id
        self._failed_id = -1
        if self._next_id < 0:
            self._first_had_id = self._had_id
            first = options.initial_sequence_id
            self._next_id = self._had_id + 1 if first is None else first
        most = connection.max_message_bytes
        self.batches.max_bytes = min(options.batch_max_bytes, most)
        chunk_bytes = min(options.chunk_max_bytes or most, most) if options.chunking else None
        version = answer.schema_version if options.schema_info is not None else b""
        self._encoding = EntryEncoding(answer.producer_name, options.compression_type, most, chunk_bytes, version)
        self._write()

    def stop(self, error: Exception) -> None:
        """End the session: unconfirmed ops are unsent again, of a chunked message all chunks."""
        self._connection = None
        self.session_error = error
        again: list[SendOp] = []
        unsent = [self._unsent.popleft()] if self._unsent else []  # it may be a later chunk of a message
        for op in (*self._sent, *unsent):
            if op.chunks is not None and not (again and again[-1].chunks is op.chunks):
                again += op.previous_chunks()
            again.append(op)
        self._unsent.extendleft(reversed(again))
        self._sent.clear()
        self._writable = None

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage) -> None:
        """Send a message, or add it to a batch; its receipt is a future that gets the result.

        :raises InvalidArgumentError: it is too large, or its sequence id is not above that of the message before
        :raises MissingExtraError: its compression is not installed
        """
        by_key = self._options.batch_by_key
        if not self._options.batching or message.is_never_batched or (by_key and message.sequence_id is not None):
            self.send_batches()
            before = self._number(message)
            try:
                self._send([message], before)
            except BaseException:
                self._free_ids()
                raise
            return
        if not by_key:  # else they are numbered in the order of the batches
            self._number(message)
        for full in self.batches.add(message):
            self._send_batch(full)

    def send_batches(self) -> None:
        """Send all open batches."""
        for messages in self.batches.close_all():
            self._send_batch(messages)

    def _send_batch(self, messages: list[OutgoingMessage]) -> None:
        try:
            if self._options.batch_by_key:
                for message in messages:
                    self._number(message)
            self._send(messages)
        except Exception as error:  # noqa: BLE001 - set on the receipts
            self._free_ids()
            self._fail_messages(messages, error)

    def _send(self, messages: list[OutgoingMessage], before: int = -1) -> None:
        """Encode messages that have their sequence ids, and send them; a large payload is compressed in a thread."""
        payload, codec = payload_of(messages), self._options.compression_type
        size = len(payload)
        ends_at = None if self._timeout is None else self._loop.time() + self._timeout
        if codec and size > LARGE_TO_COMPRESS:
            compressing = self._loop.run_in_executor(self._threads, compress, codec, payload)
            op = SendOp(messages, b"", ends_at, self._encoding)
            compressing.add_done_callback(partial(self._on_compressed, op, size, before))
            self._unsent.append(op)
        else:
            payload = compress(codec, payload) if size else payload
            self._unsent += send_ops(messages, size, payload, self._encoding, ends_at, before=before)
        for message in messages:
            message.data = b""  # it is in the ops
        if self._timer is None:
            self._arm()
        self._write()

    def _on_compressed(self, op: SendOp, size: int, before: int, compressing: asyncio.Future[bytes]) -> None:
        """Encode an op whose payload was compressed; it may have failed meanwhile."""
        if op not in self._unsent:
            compressing.exception()  # nobody else asks for it
            return
        try:
            payload = compressing.result()
            self._replace(op, send_ops(op.messages, size, payload, self._encoding, op.ends_at, before=before))
        except Exception as error:  # noqa: BLE001 - set on the receipts
            self.fail(op, error)
        self._write()

    def _number(self, message: OutgoingMessage) -> int:
        """Give a message the next sequence id unless it has one; return the id of the message before it."""
        number = message.sequence_id
        if number is None:
            message.sequence_id = number = self._next_id
        elif number <= self._last_id:
            expected = f"more than {self._last_id}, that of the message before it: ids must grow"
            raise InvalidArgumentError("sequence_id", number, expected)
        elif number <= self._failed_id:  # a late receipt for the failed message must not confirm this one
            self._restart(ConnectionLostError(f"sequence id {number} is used again"))
        before = min(max(self._last_id, self._first_had_id), number - 1)
        self._last_id = number
        if number >= self._next_id:
            self._next_id = number + 1
        return before

    def _free_ids(self) -> None:
        """Allow the last sequence ids to be used again if their messages have failed."""
        if not self.batches:
            queue = self._unsent or self._sent
            self._last_id = queue[-1].highest_sequence_id if queue else self.confirmed_id

    def _write(self) -> None:
        """Write unsent ops while the connection takes them."""
        connection = self._connection
        if connection is None or self._writable is not None:
            return
        while self._unsent and connection is self._connection:
            if connection.writable is not None:
                self._writable = connection.writable
                self._writable.add_done_callback(self._on_writable)
                return
            op = self._unsent[0]
            if not op.headers_and_payload:
                return  # its payload is being compressed
            is_received = op.sequence_id <= self._had_id
            if is_received and not op.is_last:
                self._unsent.popleft()
                continue
            if (is_received and op.highest_sequence_id > self._had_id) or op.is_too_large(self._encoding):
                self._encode_again(op)
                continue
            self._sent.append(self._unsent.popleft())
            with contextlib.suppress(ConnectionLostError):  # then the session ends
                connection.send(op.frame(self._producer_id))

    def _encode_again(self, op: SendOp) -> None:
        """Divide a batch that the broker has received in part, or an op that is too large for it."""
        ops, failed = encode_again(op, self._had_id, self._encoding)
        self._replace(op, ops)
        for message, error in failed:
            number = message.sequence_id or 0
            self._fail_messages([message], self._doubt(number) if number <= self._had_id else error)
        self._free_ids()
        self._on_removed()

    def _replace(self, op: SendOp, ops: Sequence[SendOp]) -> None:
        """Put ops in the place of an unsent one, or of all chunks of its message."""
        at = self._unsent.index(op)
        for each in op.chunks or (op,):
            if each in self._unsent:
                self._unsent.remove(each)
        for each in reversed(ops):
            each.is_overtaken = op.is_overtaken
            self._unsent.insert(at, each)

    def _on_writable(self, writable: asyncio.Future[None]) -> None:
        if writable is self._writable:  # not that of an earlier session
            self._writable = None
            self._write()

    # --- receipts --------------------------------------------------------------------------------------------------

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Confirm the op that was sent first."""
        if not self._sent:
            return
        head = self._sent[0]
        ledger, entry = position_of(receipt.message_id)
        if receipt.sequence_id != head.sequence_id:
            if receipt.sequence_id > head.sequence_id:
                self._on_early_receipt(receipt.sequence_id, ledger, entry)
            return  # a lower one: of an op that has failed
        if (head.chunks is not None or ledger < 0) and self._is_in_doubt(head, has_had=ledger < 0):
            self.fail(head, self._doubt(head.sequence_id))
            return
        self._sent.popleft()
        self._confirm(head, ledger, entry)

    def _doubt(self, sequence_id: int) -> BrokerError:
        return BrokerError(f"{self._topic}: the broker does not say whether message {sequence_id} is stored")

    def _confirm(self, op: SendOp, ledger: int, entry: int) -> None:
        op.resolve(ledger, entry, self._partition, self._topic)
        if op.is_last:
            self.confirmed_id = op.highest_sequence_id
            for message in op.messages:
                self._on_done(message)
        self._on_removed()

    def _is_in_doubt(self, op: SendOp, *, has_had: bool) -> bool:
        """Return whether a receipt does not say whether a message is stored.

        Once a later message is confirmed, "received" proves nothing. Of a chunked message the broker either had all
        chunks when the session began, and says so of the last one, or it stores all of them.
        """
        if self._topic.startswith("non-persistent:"):
            return False  # no message is stored
        if has_had and op.is_overtaken:
            return True
        return op.is_chunk and has_had is not (op.sequence_id <= self._had_id)

    def _on_early_receipt(self, sequence_id: int, ledger: int, entry: int) -> None:
        """Handle a receipt that overtakes those of earlier ops: another session shows what became of them."""
        head = self._sent[0].sequence_id
        for op in list(self._sent):
            if op.sequence_id >= sequence_id:
                if op.sequence_id == sequence_id and not op.is_chunk:
                    self._sent.remove(op)
                    self._confirm(op, ledger, entry)
                break
            op.overtake()
        self._restart(ConnectionLostError(f"a receipt for {sequence_id} before {head}"))

    # --- failures --------------------------------------------------------------------------------------------------

    def sent_op(self, sequence_id: int) -> SendOp | None:
        """Return the sent op with a sequence id; brokers name a batch by its last message."""
        return next((op for op in self._sent if sequence_id in {op.sequence_id, op.highest_sequence_id}), None)

    def fail(self, op: SendOp, error: Exception) -> None:
        """Fail an op; if it is a chunk, with all chunks of its message."""
        for each in op.chunks or (op,):
            if each in self._sent:
                self._sent.remove(each)
                self._failed_id = max(self._failed_id, op.highest_sequence_id)
            elif each in self._unsent:
                self._unsent.remove(each)
        self._free_ids()
        self._fail_messages(op.messages, error)
        self._on_removed()

    def fail_all(self, error: Exception) -> None:
        """Fail all messages, those in batches too."""
        for messages in self.batches.close_all():
            self._fail_messages(messages, error)
        self._free_ids()
        while queue := self._sent or self._unsent:
            self.fail(queue[0], error)

    def _fail_messages(self, messages: Sequence[OutgoingMessage], error: Exception) -> None:
        for message in messages:
            message.fail(error)
            self._on_done(message)

    # --- flushes and timeouts --------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send all batches, and return when all messages sent so far are confirmed or have failed."""
        self.send_batches()
        if not self._sent and not self._unsent:
            return
        flush = self._last_id, self._loop.create_future()
        self._flushes.append(flush)
        try:
            await flush[1]
        finally:
            self._flushes.remove(flush)

    def _on_removed(self) -> None:
        """End the flushes whose messages are gone, and the timer if none is left."""
        queue = self._sent or self._unsent
        for last_id, done in self._flushes:
            if not done.done() and (not queue or queue[0].sequence_id > last_id):
                done.set_result(None)
        if not queue:
            self._arm()

    def _arm(self) -> None:
        """Start the timer for the first op unless it runs; stop it if there is no op."""
        queue = self._sent or self._unsent
        if not queue:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None and queue[0].ends_at is not None:
            self._timer = self._loop.call_at(queue[0].ends_at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while queue := self._sent or self._unsent:
            ends_at = queue[0].ends_at
            if ends_at is None or ends_at > now:
                break
            reason = "" if self.session_error is None else f"; {self.session_error}"
            problem = f"not confirmed within {self._timeout:g} s{reason}"
            self.fail(queue[0], RequestTimeoutError(f"{self._topic}: {problem}"))
        self._arm()
