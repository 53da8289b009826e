"""What the consumers and producers of one client share: connections, lookups, retries, memory, the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ..._foreign import shown
from ...clock import LoopClock
from ...errors import BrokerError, ClosedError, ConnectionLostError, RequestTimeoutError
from .._protocol import _pulsar_pb2 as pb
from ._connection import Connection
from ._options import SchemaInfo
from ._pool import Pool
from ._requests import is_busy, is_transient, with_text

T = TypeVar("T")
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_THREADS: Final = 4
_SLICE: Final = 2_000
_MAX_LETTERS: Final = 2_000
"""Longest full name of a topic."""
_BUSY_S: Final = 1.0
_MIN_TRIES: Final = 15
"""A pause between tries is at most this fraction of a request's time, so that a late recovery is not missed."""


class MemoryLimitController:
    """The memory that the prefetched messages of all consumers of one client take.

    :param max_bytes: the limit; None: no limit
    """

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """Size of the payloads that are here and not taken."""
        self.consumers = 0
        """How many consumers share the memory: those that are subscribed."""

    def fitting(self, mean_bytes: int) -> int:
        """Return how many more messages of this mean size fit into one consumer's share."""
        assert self.max_bytes is not None
        return max(self.max_bytes - self.bytes, 0) // (max(self.consumers, 1) * max(mean_bytes, 1))


class ClientContext:
    """Made once for each client, in its event loop, the only one in which the client may be used.

    Lookups (:meth:`broker`, :meth:`partitions`, :meth:`topics`, :meth:`schema`) are not cached, and not retried.

    :param pool: the connections, one to each broker
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.options = pool.options
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock()
        self.memory_limit = MemoryLimitController(self.options.max_prefetched_bytes or None)
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pulsar-nack-wire")
        """Starts its threads on demand. The loop's own executor may be full of user code that waits for these."""
        self._invalid = 0
        """How many topics with invalid names the last list of topics had; logged when it changes."""

    async def aclose(self) -> None:
        """Close the connections and end the threads."""
        self.threads.shutdown(wait=False)
        await self.pool.aclose()

    # --- lookups ------------------------------------------------------------------------------------------------------

    async def broker(self, topic: str, service_url: str | None = None) -> Connection:
        """Return a connection to the broker of ``topic``, the full name of a topic or partition.

        :param service_url: that of the cluster; None: the client's
        :raises BrokerRefusedError: a broker refused
        :raises BrokerError: a broker could not be reached, or there are too many redirects
        """
        connection = await self.pool.service(service_url)
        authoritative = False
        for _ in range(self.options.max_redirects + 1):
            answer = await self._lookup(connection, topic, authoritative=authoritative)
            url = self._url_in(answer, connection, topic)
            found = await self.pool.get(url, connection.address.url if answer.proxy_through_service_url else None)
            if answer.response == answer.Connect:
                return found
            connection = found
            authoritative = answer.authoritative
        raise BrokerError(
            f"{topic}: more than {self.options.max_redirects} redirects, the last one to {connection.address}"
        )

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return how many partitions ``topic`` has; 0: it is not partitioned, or does not exist.

        :param create: whether the broker may create it, if it creates partitioned topics; brokers before 3.0.6
            always may
        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no broker could be reached
        """
        connection = await self.pool.service()
        request_id = connection.request_id()
        body = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
        if not create:
            body.metadata_auto_creation_enabled = False
        command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=body)
        answer = await self._request(connection, command, request_id)
        partitions, most = answer.partitionMetadataResponse.partitions, self.options.max_partitions
        if partitions > most:
            problem = f"{topic} has {partitions} partitions, at most {most} are allowed (max_partitions)"
            raise BrokerError(f"{connection.address}: {problem}")
        return partitions

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics of ``tenant/namespace``, each partition as one.

        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no broker could be reached, or there are too many topics
        """
        connection = await self.pool.service()
        request_id = connection.request_id()
        mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        body = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=request_id, mode=mode)
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=body)
        answer = await self._request(connection, command, request_id)
        return await self._valid(answer.getTopicsOfNamespaceResponse.topics, namespace)

    async def _valid(self, names: Sequence[str], namespace: str) -> list[str]:
        """Return the names that are valid; lets other tasks run in between."""
        if len(names) > self.options.max_topics:
            most = f"at most {self.options.max_topics} are allowed (max_topics)"
            raise BrokerError(f"namespace {namespace} has {len(names)} topics, {most}")
        found: list[str] = []
        invalid: list[str] = []
        for at in range(0, len(names), _SLICE):
            for name in names[at : at + _SLICE]:
                is_valid = name.isprintable() and len(name) <= _MAX_LETTERS
                (found if is_valid else invalid).append(name)
            await asyncio.sleep(0)
        if invalid and len(invalid) != self._invalid:
            which = f"{len(invalid)} topics of namespace {namespace}, such as {shown(invalid[0])}"
            _LOG.warning("%s, have names that are too long or not printable, and are left out", which)
        self._invalid = len(invalid)
        return found

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo:
        """Return a schema of ``topic``.

        :param version: the ``schema_version`` of a message; None: the latest
        :raises BrokerRefusedError: the broker refused; with the code ``TopicNotFound`` if there is no such schema
        :raises BrokerError: no broker could be reached
        """
        connection = await self.pool.service()
        request_id = connection.request_id()
        body = pb.CommandGetSchema(topic=topic, request_id=request_id, schema_version=version)
        command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA, getSchema=body)
        answer = await self._request(connection, command, request_id)
        return SchemaInfo.of(answer.getSchemaResponse.schema)

    async def _lookup(
        self, connection: Connection, topic: str, *, authoritative: bool
    ) -> pb.CommandLookupTopicResponse:
        request_id = connection.request_id()
        body = pb.CommandLookupTopic(
            topic=topic,
            request_id=request_id,
            authoritative=authoritative,
            advertised_listener_name=self.options.listener_name,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=body)
        return (await self._request(connection, command, request_id)).lookupTopicResponse

    async def _request(self, connection: Connection, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        try:
            return await connection.request(command, request_id)
        except BrokerError as error:
            if is_transient(error):
                self.pool.avoid(connection)
            raise

    def _url_in(self, answer: pb.CommandLookupTopicResponse, connection: Connection, topic: str) -> str:
        url = answer.brokerServiceUrlTls if self.pool.is_secure else answer.brokerServiceUrl
        if not url:
            kind = "with TLS" if self.pool.is_secure else "without TLS"
            raise ConnectionLostError(f"{connection.address}: the broker of {topic} has no address {kind}")
        return url

    def checked_cluster(self, topic: str, url: str | None) -> str | None:
        """Return the service URL that a broker names for the cluster of a topic; None, and a log line, if it is wrong.

        Consumers move later than producers, once they have no backlog, so each of them keeps its own URL.
        """
        try:
            addresses = self.pool.parsed(url or "")
        except BrokerError as error:
            _LOG.warning("%s has moved to another cluster, but is still looked up in this one: %s", topic, error)
            return None
        _LOG.info("%s has moved to the cluster at %s", topic, ", ".join(map(str, addresses)))
        return url

    # --- retries ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """Return the loop time at which a call that begins now has used up ``request_timeout``."""
        return self.loop.time() + self.options.request_timeout.total_seconds()

    async def retry_transient(
        self, call: Callable[[], Awaitable[T]], *, ends_at: float | None = None, may_wait: bool = False
    ) -> T:
        """Return the result of a call that is repeated until ``ends_at`` while its errors are transient.

        "Consumer busy" and "producer busy" are retried only briefly: the holder may be our own broken connection.

        :param ends_at: loop time; None: ``request_timeout`` from now
        :param may_wait: a call whose requests are answered in time may take longer, and is not ended
        :raises BrokerError: the last error, with the number of tries and the time they took
        """
        loop, limit = self.loop, self.options.request_timeout.total_seconds()
        began_at = loop.time()
        ends_at = began_at + limit if ends_at is None else ends_at
        backoff = self.options.backoff()
        last: BrokerError | None = None
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout_at(None if may_wait else ends_at) as time_left:
                    return await call()
            except BrokerError as error:
                last, may_pass = error, is_transient(error)
                pause = min(float(backoff(tries - 1)), limit / _MIN_TRIES)
                gives_up_at = ends_at if may_pass else min(began_at + _BUSY_S, ends_at) if is_busy(error) else 0.0
                if loop.time() + pause > gives_up_at:
                    if not may_pass or tries == 1:
                        raise
                    raise _with_tries(error, tries, loop.time() - began_at) from error.__cause__
                if may_pass and tries == 1:
                    _LOG.warning("%s; trying again for up to %.3g s", error, ends_at - loop.time())
            except TimeoutError as error:
                if not time_left.expired():
                    raise
                raise _with_tries(last or self._no_answer(), tries, loop.time() - began_at) from error
            await asyncio.sleep(pause)

    async def reconnect(
        self,
        connect: Callable[[], Awaitable[None]],
        is_over: Callable[[], bool],
        on_failure: Callable[[Exception], None],
        *,
        attempt: int,
        at_once: bool,
    ) -> None:
        """Repeat ``connect`` until ``is_over``, at growing intervals. Any error but cancellation is a failed attempt.

        :param is_over: whether it is connected, or need not connect any more
        :param on_failure: called with the error of each attempt, including those of the user's authentication
        :param attempt: number of the first attempt; a higher one waits longer
        :param at_once: whether attempt 0 starts without a pause
        :raises ClosedError: the client is closed
        """
        backoff = self.options.backoff()
        while not is_over():
            if attempt or not at_once:
                await asyncio.sleep(float(backoff(attempt)))
            attempt += 1
            try:
                await connect()
            except Exception as error:
                if self.pool.is_closed:
                    raise ClosedError("the client") from error
                if not is_over():
                    on_failure(error)

    def _no_answer(self) -> BrokerError:
        if self.pool.connections():
            return RequestTimeoutError("no answer")
        return ConnectionLostError(f"{self.pool}: not connected")


def _with_tries(error: BrokerError, tries: int, seconds: float) -> BrokerError:
    return with_text(error, f"{error} (tried {'once' if tries == 1 else f'{tries} times'} in {seconds:.3g} s)")
