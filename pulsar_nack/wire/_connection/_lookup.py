"""Lookups: the broker of a topic, its partitions and schema, and the topics of a namespace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ..._foreign import shown
from ...errors import BrokerError, ConnectionLostError
from .._protocol import _pulsar_pb2 as pb
from ._connection import Connection
from ._options import ClientOptions, SchemaInfo
from ._pool import Pool
from ._requests import is_transient

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_SLICE: Final = 2_000
_MAX_LETTERS: Final = 2_000
"""Longest full name of a topic."""


class Lookup:
    """Sends lookups and other questions about topics. It caches no answers and does not retry; callers do."""

    def __init__(self, pool: Pool, options: ClientOptions | None = None) -> None:
        self._pool = pool
        self._options = options or ClientOptions()
        self._invalid = 0
        """How many topics with invalid names the last answer had; logged when it changes."""

    async def broker(self, topic: str, service_url: str | None = None) -> Connection:
        """Return a connection to the broker of ``topic``, the full name of a topic or partition.

        :param service_url: that of the cluster; None: the client's
        :raises BrokerRefusedError: a broker refused
        :raises BrokerError: a broker could not be reached, or there are too many redirects
        """
        connection = await self._pool.service(service_url)
        authoritative = False
        for _ in range(self._options.max_redirects + 1):
            answer = await self._lookup(connection, topic, authoritative=authoritative)
            url = self._url_in(answer, connection, topic)
            found = await self._pool.get(url, connection.address.url if answer.proxy_through_service_url else None)
            if answer.response == answer.Connect:
                return found
            connection = found
            authoritative = answer.authoritative
        raise BrokerError(
            f"{topic}: more than {self._options.max_redirects} redirects, the last one to {connection.address}"
        )

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return how many partitions ``topic`` has; 0: it is not partitioned, or does not exist.

        :param create: whether the broker may create it, if it creates partitioned topics; brokers before 3.0.6
            always may
        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no broker could be reached
        """
        connection = await self._pool.service()
        request_id = connection.request_id()
        body = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
        if not create:
            body.metadata_auto_creation_enabled = False
        command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=body)
        answer = await self._request(connection, command, request_id)
        partitions, most = answer.partitionMetadataResponse.partitions, self._options.max_partitions
        if partitions > most:
            problem = f"{topic} has {partitions} partitions, at most {most} are allowed (max_partitions)"
            raise BrokerError(f"{connection.address}: {problem}")
        return partitions

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics of ``tenant/namespace``, each partition as one.

        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no broker could be reached, or there are too many topics
        """
        connection = await self._pool.service()
        request_id = connection.request_id()
        mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        body = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=request_id, mode=mode)
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=body)
        answer = await self._request(connection, command, request_id)
        return await self._valid(answer.getTopicsOfNamespaceResponse.topics, namespace)

    async def _valid(self, names: Sequence[str], namespace: str) -> list[str]:
        """Return the names that are valid; lets other tasks run in between."""
        if len(names) > self._options.max_topics:
            most = f"at most {self._options.max_topics} are allowed (max_topics)"
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
        connection = await self._pool.service()
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
            advertised_listener_name=self._options.listener_name,
        )
        command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=body)
        return (await self._request(connection, command, request_id)).lookupTopicResponse

    async def _request(self, connection: Connection, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        try:
            return await connection.request(command, request_id)
        except BrokerError as error:
            if is_transient(error):
                self._pool.avoid(connection)
            raise

    def _url_in(self, answer: pb.CommandLookupTopicResponse, connection: Connection, topic: str) -> str:
        url = answer.brokerServiceUrlTls if self._pool.is_secure else answer.brokerServiceUrl
        if not url:
            kind = "with TLS" if self._pool.is_secure else "without TLS"
            raise ConnectionLostError(f"{connection.address}: the broker of {topic} has no address {kind}")
        return url
