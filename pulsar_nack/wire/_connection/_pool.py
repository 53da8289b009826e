"""The connections of a client: one for each broker, or for each broker behind a proxy, shared by all who want it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import BrokerError, ClosedError, ConnectionLostError, InvalidArgumentError, ProtocolError
from ._address import Address, parse_service_url
from ._connection import Connection, Dial
from ._options import ClientOptions

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_MOST_LOST: Final = 1_000


class _Place(NamedTuple):
    """Where a connection leads: to a broker, at an address that is its own or a proxy's."""

    logical: Address
    physical: Address

    @property
    def proxy_to(self) -> str | None:
        return None if self.logical == self.physical else self.logical.host_and_port


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

    A connection stays until it breaks or the pool is closed. Several who want the same wait for one attempt, which goes
    on when one of them is cancelled.

    :param url: the service URL; of several addresses one is chosen by chance, and another when it cannot be reached
    :param dial: opens connections in another way than over the network, for tests
    :param choose: what is drawn from a number of addresses, from 0
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
        self._options = options or ClientOptions()
        self._dial = dial
        self._turn = choose(len(self._addresses))
        self._open: dict[_Place, Connection] = {}
        self._opening: dict[_Place, asyncio.Task[Connection]] = {}
        self.is_closed = False
        self._lost: dict[_Place, tuple[float, Exception]] = {}
        """Lost connections that are not restored yet: when they were lost, in the loop's time, and why."""
        self._counts = {"connections_lost": 0, "reconnects": 0, "failed_connects": 0, "protocol_errors": 0}

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))

    @property
    def is_secure(self) -> bool:
        """Return whether the service URL is one for TLS."""
        return self._addresses[0].is_secure

    def connections(self) -> list[Connection]:
        """Return those that are open."""
        return list(self._open.values())

    async def get(self, logical: str, physical: str | None = None) -> Connection:
        """Return an open connection to the broker at the URL ``logical``, perhaps through a proxy at ``physical``.

        :raises ClosedError: the pool is closed
        :raises BrokerError: what :meth:`Connection.open` raises; or the URL is invalid or has another scheme than the
            service URL
        """
        broker = self._named(logical)
        return await self._to(_Place(broker, broker if physical is None else self._named(physical)))

    def _named(self, url: str) -> Address:
        """Parse an address that a broker has named; refuse it if the service URL differs in TLS."""
        try:
            address = Address.parse(url)
        except InvalidArgumentError as error:
            raise BrokerError(f"{self}: a broker named an invalid address: {error}") from error
        if address.is_secure != self.is_secure:
            what = "without TLS" if self.is_secure else "with TLS"
            raise BrokerError(f"{self}: a broker named {address}, which is {what}: it is not connected to")
        return address

    async def service(self) -> Connection:
        """Return an open connection to one of the service's addresses.

        The same address is used until it cannot be reached, then the next one.

        :raises ClosedError: the pool is closed
        :raises BrokerError: none could be reached; what the last one said
        """
        last: BrokerError | None = None
        for _ in self._addresses:
            turn = self._turn
            address = self._addresses[turn]
            try:
                return await self._to(_Place(address, address))
            except BrokerError as error:
                last = error
                if self._turn == turn:  # nobody else has moved on meanwhile
                    self._turn = (turn + 1) % len(self._addresses)
        assert last is not None
        raise last

    def avoid(self, connection: Connection) -> None:
        """Ask another of the service's addresses from now on: this one does not do what it should."""
        if self._addresses[self._turn] == connection.address:
            self._turn = (self._turn + 1) % len(self._addresses)

    async def _to(self, place: _Place) -> Connection:
        if self.is_closed:
            raise ClosedError("the client")
        connection = self._open.get(place)
        if connection is not None and connection.is_open:
            return connection
        task = self._opening.get(place)
        if task is None:
            task = asyncio.create_task(self._connect(place), name=f"pulsar_nack.wire connecting to {place.physical}")
            self._opening[place] = task
            task.add_done_callback(_look_at)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not task.cancelled() or (current is not None and current.cancelling()):  # we, not the attempt
                raise
            if self.is_closed:
                raise ClosedError("the client") from None
            raise ConnectionLostError(f"{place.physical}: connecting was cancelled") from None  # by an authentication

    async def _connect(self, place: _Place) -> Connection:
        def forget(closed: Connection) -> None:
            if self._open.get(place) is closed:
                del self._open[place]
            if closed.lost_by is not None:
                self._note_lost(place, closed.lost_by)

        try:
            connection = await Connection.open(
                place.physical, self._options, proxy_to=place.proxy_to, dial=self._dial, on_closed=forget
            )
        except Exception as error:
            self._counts["failed_connects"] += 1
            self._counts["protocol_errors"] += isinstance(error, ProtocolError)
            raise
        finally:
            del self._opening[place]
        if connection.is_open:
            self._open[place] = connection
            self._note_open(place)
        return connection

    def _note_lost(self, place: _Place, error: Exception) -> None:
        self._counts["connections_lost"] += 1
        self._counts["protocol_errors"] += isinstance(error, ProtocolError)
        self._lost[place] = asyncio.get_running_loop().time(), error
        if len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]
        _LOG.warning("connection lost: %s", error)

    def _note_open(self, place: _Place) -> None:
        lost_at, error = self._lost.pop(place, (0.0, None))
        if error is not None:
            self._counts["reconnects"] += 1
            seconds = asyncio.get_running_loop().time() - lost_at
            _LOG.warning(
                "%s: connected again, %.3g s after the connection was lost: %s", place.physical, seconds, error
            )

    def statistics(self) -> ClientStatistics:
        """Return the counts of connections."""
        return ClientStatistics(connections=len(self._open), **self._counts)

    async def aclose(self) -> None:
        """Close all connections and wait until they are gone. Idempotent."""
        self.is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        await asyncio.gather(*(connection.aclose() for connection in self.connections()))


def _look_at(task: asyncio.Task[Connection]) -> None:
    """Keep asyncio from reporting the error of an attempt whose waiters were all cancelled."""
    if not task.cancelled():
        task.exception()
