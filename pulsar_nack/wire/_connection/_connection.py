"""One connection to a broker or proxy, shared by all consumers and producers whose topics are there.

States: opening (until the broker has accepted it), open, closed for good; then its users open another one. It ends
once, in ``_shut``, whatever the reason: all pending requests fail, all consumers and producers are called, all tasks
and timers are cancelled.

Commands arrive in ``buffer_updated`` and are dispatched in the same call, without awaiting: responses by request id,
messages by consumer id, receipts by producer id. Commands for unknown ids are dropped, because closing a consumer does
not stop what is already on its way.

A handler that raises has a bug. The error goes to the loop's exception handler and the connection is closed, since the
handler may have lost state; after reconnecting, the broker sends everything again. An error of what gets
the response to a request goes there too, and the connection stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Self, cast

from ..._foreign import quoted
from ...errors import BrokerError, ConnectionLostError
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import PING, PONG, Frame, FrameDecoder, MessageCommand, encode_command
from ._address import Address
from ._handlers import HandlerRegistry
from ._handshake import Handshake, dial_error, dial_network
from ._options import ClientOptions
from ._requests import PendingRequests, error_in, set_response, with_text

_CLOSE_TIMEOUT: Final = 5.0
_FRAME_OVERHEAD: Final = 10 * 1024
_READ_BYTES: Final = 64 * 1024
_NO_REQUEST: Final = 2**64 - 1

Dial = Callable[["Connection", Address], Awaitable[None]]
"""Connects a protocol to an address: calls its ``connection_made`` with a transport."""

_RESPONSES: Final[dict[int, str]] = {
    pb.BaseCommand.SUCCESS: "success",
    pb.BaseCommand.ERROR: "error",
    pb.BaseCommand.PRODUCER_SUCCESS: "producer_success",
    pb.BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    pb.BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    pb.BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    pb.BaseCommand.ACK_RESPONSE: "ackResponse",
    pb.BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS: "watchTopicListSuccess",
}
"""The field that holds the body, with the request id, for each kind of response."""


class Connection(asyncio.BufferedProtocol):
    """A connection; get it from :meth:`open` or a pool, and use it in one event loop only."""

    def __init__(
        self, address: Address, options: ClientOptions, on_closed: Callable[[Connection], None] | None = None
    ) -> None:
        self.address = address
        self.is_open = False
        self.loss_error: Exception | None = None
        """Why it was lost; None while it is open, if it was never open, or if it was closed on purpose."""
        self._options = options
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._handlers = HandlerRegistry(is_secure=address.is_secure)
        self.consumers = self._handlers.consumers
        self.producers = self._handlers.producers
        self.watchers = self._handlers.watchers
        self.handler_ids = self._handlers.ids
        self._decoder = FrameDecoder(max_command_bytes=options.max_command_bytes, max_topics=options.max_topics)
        self._read_buffer = memoryview(bytearray(_READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._requests = PendingRequests(self._loop, options.request_timeout.total_seconds(), str(address))
        self.request_id = self._requests.next_id
        """Returns a new request id."""
        self.begin_request = self._requests.begin
        """Returns a new request id; a function is called with the response, or with an error of :meth:`request`."""
        self.discard_request = self._requests.discard
        """Forgets a request whose response is of no interest."""
        self.fail_request = self._requests.fail
        """Fails a request that has no response yet."""
        self._handshake = Handshake(options.authentication, self._loop, self.send, self.close)
        self.without_secrets = self._handshake.without_secrets
        """Returns a text of the broker with our credentials replaced."""
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._was_heard = True
        """Whether anything came from the broker since the last PING."""
        self._transport_closed: asyncio.Future[None] = self._loop.create_future()
        self.writable: asyncio.Future[None] | None = None
        """Set while more than ``write_buffer_bytes`` wait to be written; done when that is over."""
        self._error: Exception | None = None
        self._owes_pong = False

    @classmethod
    async def open(
        cls,
        address: Address,
        options: ClientOptions,
        *,
        proxy_to: str | None = None,
        dial: Dial | None = None,
        on_closed: Callable[[Connection], None] | None = None,
    ) -> Self:
        """Connect, and return when the broker has accepted the connection.

        :param proxy_to: ``host:port`` of the broker behind a proxy
        :param on_closed: called once when the connection is closed, whatever the reason
        :raises ConnectionLostError: the broker cannot be reached, or not within ``connect_timeout``
        :raises BrokerRefusedError: the broker refuses the connection
        :raises BrokerError: its certificate is not trusted
        """
        connection = cls(address, options, on_closed)
        connection._handlers.is_proxied = proxy_to is not None
        seconds = options.connect_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds) as limit:
                await (dial(connection, address) if dial else dial_network(connection, address, options))
                await connection._start(proxy_to)
        except OSError as error:  # a TimeoutError is one
            connection.close(error)
            if limit.expired():
                raise ConnectionLostError(f"{address}: not connected within {seconds:g} s") from error
            raise dial_error(address, error) from error
        except BaseException as error:
            connection.close(error)
            raise
        return connection

    def __repr__(self) -> str:
        state = "open" if self.is_open else "opening" if self._error is None else "closed"
        return f"<Connection to {self.address}, {state}>"

    # --- the broker ---

    @property
    def connected(self) -> pb.CommandConnected:
        """Return the broker's response to CONNECT: its version, features and limits."""
        return self._handshake.connected

    @property
    def max_message_bytes(self) -> int:
        """Return the size of the largest message."""
        of_broker = max(self.connected.max_message_size, 0)
        return min(of_broker or self._options.max_message_bytes, self._options.max_frame_bytes)

    # --- sending ---

    def send(self, data: bytes) -> None:
        """Write bytes of the protocol, without waiting.

        If more than ``max_unsent_bytes`` pile up because the broker does not read, the connection is closed.

        :raises ConnectionLostError: it is closed
        """
        transport = self._transport
        if self._error is not None or transport is None:
            raise self._closed_error()
        transport.write(data)
        if self.writable is not None and transport.get_write_buffer_size() > self._options.max_unsent_bytes:
            self.close(ConnectionLostError(f"{self.address}: the broker does not read what it is sent"))

    async def request(
        self, command: pb.BaseCommand, request_id: int, *, timeout: float | None = None
    ) -> pb.BaseCommand:
        """Send a command that has this request id, and return the broker's response.

        :param timeout: seconds; None: ``request_timeout``
        :raises BrokerRefusedError: the broker refused
        :raises ConnectionLostError: it is closed, or was closed before the response came
        :raises RequestTimeoutError: no response in time
        """
        self._check_open()
        response: asyncio.Future[pb.BaseCommand] = self._loop.create_future()
        kind = pb.BaseCommand.Type.Name(command.type)
        self._requests.begin(kind, partial(set_response, response), timeout, request_id)
        try:
            self.send(encode_command(command))
            return await response
        finally:
            self._requests.discard(request_id)

    # --- closing ---

    def close(self, error: BaseException | None = None) -> None:
        """Close the connection: requests fail, handlers are called.

        :param error: the reason; None: closed on purpose, and what was written before is still sent
        """
        if error is None:
            self._shut(ConnectionLostError(f"{self.address}: the connection was closed here"), is_on_purpose=True)
            return
        reason = error if isinstance(error, BrokerError) else ConnectionLostError(f"{self.address}: {quoted(error)}")
        if reason is not error:
            reason.__cause__ = error
        self._shut(reason, is_on_purpose=False)

    async def aclose(self) -> None:
        """Close the connection and wait until the transport is closed, for a few seconds at most."""
        self.close()
        if self._transport is not None and not self._transport_closed.done():
            try:
                await asyncio.wait([self._transport_closed], timeout=_CLOSE_TIMEOUT)
            finally:
                if not self._transport_closed.done():  # too slow, or the caller was cancelled
                    self._transport.abort()
        await self._handshake.wait_closed()

    def _shut(self, error: Exception, *, is_on_purpose: bool) -> None:
        if self._error is not None:
            return
        self._error = error
        self.loss_error = error if self.is_open and not is_on_purpose else None
        self.is_open = False
        if self._transport is not None:
            self._transport.close() if is_on_purpose else self._transport.abort()
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        self._handshake.on_connection_lost(error)
        self.resume_writing()
        self._requests.fail_all(self._closed_error())  # always a lost connection: callers may ask another broker
        self._handlers.on_connection_lost(error, self._report)
        if self._on_closed is not None:
            self._on_closed(self)

    def _closed_error(self) -> ConnectionLostError:
        if self._error is None:
            return ConnectionLostError(f"{self.address}: the connection is not open yet")
        error = ConnectionLostError(str(self._error))
        error.__cause__ = self._error
        return error

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._closed_error()

    def _report(self, fault: Exception) -> None:
        message = f"a handler of {self!r} raised an error"
        self._loop.call_exception_handler({"message": message, "exception": fault, "protocol": self})

    # --- opening and keeping alive ---

    async def _start(self, proxy_to: str | None) -> None:
        await self._handshake.run(proxy_to)
        self._check_open()
        self._decoder.max_frame_bytes = self.max_message_bytes + _FRAME_OVERHEAD
        self._keep_alive_timer = self._loop.call_later(self._options.keep_alive.total_seconds(), self._keep_alive)
        self.is_open = True

    def _keep_alive(self) -> None:
        """Send PING every interval; a broker that is silent until the next one is gone."""
        interval = self._options.keep_alive.total_seconds()
        if not self._was_heard:
            self.close(ConnectionLostError(f"{self.address}: no sign of life for {interval:g} s after a ping"))
            return
        self._was_heard = False
        self._keep_alive_timer = self._loop.call_later(interval, self._keep_alive)
        self.send(PING)

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use a transport; abort it if the connection was closed meanwhile."""
        self._transport = cast("asyncio.Transport", transport)
        if self._error is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._options.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection, as the transport is closed."""
        reason = f"the connection broke: {exc}" if exc else "the broker closed the connection"
        error = ConnectionLostError(f"{self.address}: {reason}")
        error.__cause__ = exc
        self._shut(error, is_on_purpose=False)
        if not self._transport_closed.done():
            self._transport_closed.set_result(None)

    def pause_writing(self) -> None:
        """Mark the connection as congested."""
        if self.writable is None:
            self.writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Mark the connection as not congested."""
        writable, self.writable = self.writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def get_buffer(self, _sizehint: int, /) -> memoryview:
        """Return the buffer to read into: one for all reads, where asyncio would make the largest one for each."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Dispatch the frames that the bytes complete which were read."""
        self._was_heard = True
        frames: list[Frame] = []
        frame: Frame | None = None
        try:
            frames = self._decoder.feed(self._read_buffer[:nbytes].tobytes())
            for frame in frames:
                if self._error is not None:
                    return
                command, headers_and_payload = frame
                if not isinstance(command, MessageCommand):
                    self._dispatch(command)
                    continue
                consumer = self.consumers.get(command[0])  # inlined: the hot path
                if consumer is not None:
                    consumer.on_message(command, headers_and_payload)
            if self._owes_pong:
                self._owes_pong = False
                self.send(PONG)
        except BrokerError as error:
            self.close(self._located(error, frames, frame))
        except Exception as fault:  # noqa: BLE001 - reported
            self._report(fault)
            self.close(self._located(fault, frames, frame))

    def _located(self, error: Exception, frames: Sequence[Frame], frame: Frame | None) -> BrokerError:
        """Return an error whose text begins with the address, and with the frame that was being handled."""
        where = ""
        if frame is not None:
            number = self._decoder.frames - len(frames) + next(at for at, each in enumerate(frames) if each is frame)
            command, _ = frame
            kind = "MESSAGE" if isinstance(command, MessageCommand) else pb.BaseCommand.Type.Name(command.type)
            where = f"frame {number}, a command {kind}: "
        if isinstance(error, BrokerError):
            return with_text(error, f"{self.address}: {where}{error}")
        lost = ConnectionLostError(f"{self.address}: {where}{quoted(error)}")
        lost.__cause__ = error
        return lost

    def _dispatch(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind == pb.BaseCommand.ACK_RESPONSE and not command.ackResponse.HasField("error"):
            self._requests.resolve(command.ackResponse.request_id, command)  # as below, without a detour: often
        elif kind in _RESPONSES:
            self._on_response(command, getattr(command, _RESPONSES[kind]))
        elif kind == pb.BaseCommand.PING:
            self._owes_pong = True  # one for all pings that arrive together
        elif kind == pb.BaseCommand.CONNECTED:
            self._handshake.on_connected(command.connected)
        elif kind == pb.BaseCommand.AUTH_CHALLENGE:
            self._handshake.on_challenge(command.authChallenge)
        else:
            self._handlers.dispatch(command)

    def _on_response(self, command: pb.BaseCommand, body: Any) -> None:
        request_id: int = body.request_id
        error = error_in(command.type, body, self.without_secrets)
        if error is not None and (not self._handshake.is_done or request_id == _NO_REQUEST):
            self.close(error)  # the broker refuses the connection, or withdraws it
        elif error is not None:
            self._requests.fail(request_id, error)
        elif command.type == pb.BaseCommand.PRODUCER_SUCCESS and not body.producer_ready:
            self._requests.remove_timeout(request_id)
        else:
            self._requests.resolve(request_id, command)
