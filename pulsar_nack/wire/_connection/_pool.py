"""The connections of a client: one for each broker, or for each broker behind a proxy."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..._tasks import retrieve_error
from ...errors import BrokerError, ClosedError, ConnectionLostError, InvalidArgumentError, ProtocolError
from ._address import Address, parse_service_url
from ._connection import Connection, Dial
from ._options import ClientOptions

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_MAX_LOST: Final = 1_000
_MAX_CLUSTERS: Final = 100
"""Most clusters of which the address in use is remembered: a broker may name any number."""

_Endpoint = tuple[Address, Address]
"""The address of a broker, and the one to dial: the same, or that of a proxy."""


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A snapshot of a client's connections. Totals count since the client was made.

    :param connections: now: open connections
    :param connections_lost: total: open connections that broke, or that a broker closed
    :param reconnects: total: lost connections that were restored
    :param failed_connects: total: attempts to connect that failed
    :param protocol_errors: total: connections closed because the broker sent bytes that are not the protocol
    """

    connections: int = 0
    connections_lost: int = 0
    reconnects: int = 0
    failed_connects: int = 0
    protocol_errors: int = 0


class Pool:
    """The connections of one client, in one event loop.

    A connection stays open until it breaks or the pool is closed. Concurrent calls for the same one share one attempt,
    which continues if one of them is cancelled.

    :param url: the service URL; it starts at a random address, and moves to the next if one cannot be reached
    :param dial: opens connections other than over the network, for tests
    :param choose: draws a random index below a number
    """

    def __init__(
        self,
        url: str,
        options: ClientOptions | None = None,
        *,
        dial: Dial | None = None,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._addresses = parse_service_url(url)
        self.options = options or ClientOptions()
        self._dial = dial
        self._turns: dict[str | None, int] = {None: choose(len(self._addresses))}
        """Which address is used, by service URL; None: the client's."""
        self._open: dict[_Endpoint, Connection] = {}
        self._opening: dict[_Endpoint, asyncio.Task[Connection]] = {}
        self.is_closed = False
        self._lost: dict[_Endpoint, tuple[float, Exception]] = {}
        """Lost connections that are not restored yet: the loop time of the loss, and the error."""
        self._counts = {"connections_lost": 0, "reconnects": 0, "failed_connects": 0, "protocol_errors": 0}

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))

    @property
    def is_secure(self) -> bool:
        """Return whether the service URL requires TLS."""
        return self._addresses[0].is_secure

    def connections(self) -> list[Connection]:
        """Return the open connections."""
        return list(self._open.values())

    async def get(self, logical: str, physical: str | None = None) -> Connection:
        """Return an open connection to the broker at the URL ``logical``, perhaps through a proxy at ``physical``.

        :raises ClosedError: the pool is closed
        :raises BrokerError: what :meth:`Connection.open` raises; or the URL is invalid or has another scheme than the
            service URL
        """
        (broker,) = self.parsed(logical, is_service=False)
        (dialled,) = (broker,) if physical is None else self.parsed(physical, is_service=False)
        return await self._connection_to((broker, dialled))

    def parsed(self, url: str, *, is_service: bool = True) -> tuple[Address, ...]:
        """Parse a URL from a broker; refuse it if it differs from the service URL in TLS.

        :param is_service: it may have several addresses
        :raises BrokerError: it is invalid, or differs
        """
        try:
            addresses = parse_service_url(url) if is_service else (Address.parse(url),)
        except InvalidArgumentError as error:
            raise BrokerError(f"{self}: a broker named an invalid address: {error}") from error
        if addresses[0].is_secure != self.is_secure:
            what = "without TLS" if self.is_secure else "with TLS"
            raise BrokerError(f"{self}: a broker named {addresses[0]}, which is {what}; the service URL differs")
        return addresses

    async def service(self, url: str | None = None) -> Connection:
        """Return an open connection to one of the service's addresses, or of those of another cluster.

        The same address is used until it cannot be reached, then the next one.

        :param url: the service URL of the other cluster
        :raises ClosedError: the pool is closed
        :raises BrokerError: none could be reached; the error of the last one
        """
        addresses = self._addresses_of(url)
        if len(self._turns) > _MAX_CLUSTERS:
            self._turns = {None: self._turns[None]}
        last: BrokerError | None = None
        for _ in addresses:
            turn = self._turns.setdefault(url, 0)
            address = addresses[turn]
            try:
                return await self._connection_to((address, address))
            except BrokerError as error:
                last = error
                if self._turns.get(url) == turn:  # no concurrent call has moved on
                    self._turns[url] = (turn + 1) % len(addresses)
        assert last is not None
        raise last

    def avoid(self, connection: Connection) -> None:
        """Use the next service address from now on if this connection is the current one: it does not work well."""
        for url, turn in self._turns.items():
            addresses = self._addresses_of(url)
            if addresses[turn] == connection.address:
                self._turns[url] = (turn + 1) % len(addresses)

    def _addresses_of(self, url: str | None) -> tuple[Address, ...]:
        return self._addresses if url is None else self.parsed(url)

    async def _connection_to(self, endpoint: _Endpoint) -> Connection:
        if self.is_closed:
            raise ClosedError("the client")
        _, dialled = endpoint
        connection = self._open.get(endpoint)
        if connection is not None and connection.is_open:
            return connection
        task = self._opening.get(endpoint)
        if task is None or task.done():  # done: cancelled before it began
            task = asyncio.create_task(self._connect(endpoint), name=f"pulsar_nack.wire connecting to {dialled}")
            self._opening[endpoint] = task
            task.add_done_callback(retrieve_error)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not task.cancelled() or (current is not None and current.cancelling()):  # this call, not the attempt
                raise
            if self.is_closed:
                raise ClosedError("the client") from None
            raise ConnectionLostError(f"{dialled}: connecting was cancelled") from None  # by an authentication

    async def _connect(self, endpoint: _Endpoint) -> Connection:
        def on_closed(closed: Connection) -> None:
            if self._open.get(endpoint) is closed:
                del self._open[endpoint]
            if closed.loss_error is not None:
                self._note_lost(endpoint, closed.loss_error)

        broker, dialled = endpoint
        proxy_to = None if broker == dialled else broker.host_and_port
        try:
            connection = await Connection.open(
                dialled, self.options, proxy_to=proxy_to, dial=self._dial, on_closed=on_closed
            )
        except Exception as error:
            self._counts["failed_connects"] += 1
            self._counts["protocol_errors"] += isinstance(error, ProtocolError)
            raise
        finally:
            del self._opening[endpoint]
        if connection.is_open:
            self._open[endpoint] = connection
            self._note_open(endpoint)
        return connection

    def _note_lost(self, endpoint: _Endpoint, error: Exception) -> None:
        self._counts["connections_lost"] += 1
        self._counts["protocol_errors"] += isinstance(error, ProtocolError)
        self._lost[endpoint] = asyncio.get_running_loop().time(), error
        if len(self._lost) > _MAX_LOST:
            del self._lost[next(iter(self._lost))]
        _LOG.warning("connection lost: %s", error)

    def _note_open(self, endpoint: _Endpoint) -> None:
        lost_at, error = self._lost.pop(endpoint, (0.0, None))
        if error is not None:
            self._counts["reconnects"] += 1
            seconds = asyncio.get_running_loop().time() - lost_at
            _, dialled = endpoint
            _LOG.warning("%s: connected again, %.3g s after the connection was lost: %s", dialled, seconds, error)

    def statistics(self) -> ClientStatistics:
        """Return the counts of connections."""
        return ClientStatistics(connections=len(self._open), **self._counts)

    async def aclose(self) -> None:
        """Close all connections and wait until they are closed. Idempotent."""
        self.is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        await asyncio.gather(*(connection.aclose() for connection in self.connections()))
