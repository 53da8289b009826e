"""Questions to the service: which broker has a topic, how many partitions there are, which topics a namespace has."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Final

from ..._foreign import shown
from ...errors import BrokerError, ConnectionLostError, InvalidArgumentError
from .. import _pulsar_pb2 as pb
from .._protocol._schema_info import SchemaInfo
from .._protocol._topics import TopicsMode
from ._connection import Connection
from ._options import ClientOptions
from ._pool import Pool
from ._refusals import is_transient

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_AT_ONCE: Final = 2_000
_MOST_LETTERS: Final = 2_000
"""Longest full name of a topic."""
_MODES: Final[dict[str, pb.CommandGetTopicsOfNamespace.Mode]] = {
    "persistent": pb.CommandGetTopicsOfNamespace.PERSISTENT,
    "non_persistent": pb.CommandGetTopicsOfNamespace.NON_PERSISTENT,
    "all": pb.CommandGetTopicsOfNamespace.ALL,
}


class Lookup:
    """Sends lookups and other questions about topics. It caches no answers and does not retry; callers do."""

    def __init__(self, pool: Pool, options: ClientOptions | None = None) -> None:
        self._pool = pool
        self._options = options or ClientOptions()
        self._strange = 0
        """How many topics were left out last time; logged when it changes."""

    async def broker(self, topic: str) -> Connection:
        """Return a connection to the broker that has ``topic``, a whole name of a topic or partition.

        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: a broker could not be reached, or they send us in circles
        """
        connection = await self._pool.service()
        authoritative = False
        for _ in range(self._options.max_redirects + 1):
            answer = await self._ask(connection, topic, authoritative=authoritative)
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
        """Return how many partitions ``topic`` has; 0: it is not partitioned, or not there.

        :param create: whether the broker may create it, where it creates topics with partitions; those before
            3.0.6 always may
        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: no broker could be reached
        """
        connection = await self._pool.service()
        request_id = connection.request_id()
        command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic
        command.partitionMetadata.request_id = request_id
        if not create:
            command.partitionMetadata.metadata_auto_creation_enabled = False
        answer = await self._request(connection, command, request_id)
        partitions, most = answer.partitionMetadataResponse.partitions, self._options.max_partitions
        if partitions > most:
            raise BrokerError(
                f"{connection.address}: {topic} has {partitions} partitions, at most {most} are taken (max_partitions)"
            )
        return partitions

    async def topics(self, namespace: str, *, pattern: str | None = None, mode: TopicsMode = "persistent") -> list[str]:
        """Return the whole names of the topics of ``tenant/namespace``, each partition by itself.

        :param pattern: a regular expression that whole names have to match
        :raises InvalidArgumentError: not a regular expression, or not a mode
        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: no broker could be reached
        """
        if mode not in _MODES:
            raise InvalidArgumentError("mode", mode, f"one of {', '.join(_MODES)}")
        wanted = _compiled(pattern)
        connection = await self._pool.service()
        request_id = connection.request_id()
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.namespace = namespace
        command.getTopicsOfNamespace.request_id = request_id
        command.getTopicsOfNamespace.mode = _MODES[mode]
        answer = await self._request(connection, command, request_id)
        return await self._matching(answer.getTopicsOfNamespaceResponse.topics, wanted, namespace)

    async def _matching(self, names: Sequence[str], wanted: re.Pattern[str] | None, namespace: str) -> list[str]:
        """Return the names that match and are printable; lets other tasks run in between."""
        if len(names) > self._options.max_topics:
            most = f"at most {self._options.max_topics} are taken (max_topics)"
            raise BrokerError(f"namespace {namespace} has {len(names)} topics, {most}")
        found: list[str] = []
        strange: list[str] = []
        for at in range(0, len(names), _AT_ONCE):
            for name in names[at : at + _AT_ONCE]:
                if not name.isprintable() or len(name) > _MOST_LETTERS:
                    strange.append(name)
                elif wanted is None or wanted.fullmatch(name):
                    found.append(name)
            await asyncio.sleep(0)
        if strange and len(strange) != self._strange:
            which = f"{len(strange)} topics of namespace {namespace}, such as {shown(strange[0])}"
            _LOG.warning("%s, have names that are too long or not printable, and are left out", which)
        self._strange = len(strange)
        return found

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo:
        """Return a schema of ``topic``.

        :param version: as messages name it, None: the latest
        :raises BrokerRefusedError: the broker said no; with the code ``TopicNotFound`` where there is no such schema
        :raises BrokerError: no broker could be reached
        """
        connection = await self._pool.service()
        request_id = connection.request_id()
        command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
        command.getSchema.topic = topic
        command.getSchema.request_id = request_id
        if version is not None:
            command.getSchema.schema_version = version
        answer = await self._request(connection, command, request_id)
        return SchemaInfo.of(answer.getSchemaResponse.schema)

    async def _ask(self, connection: Connection, topic: str, *, authoritative: bool) -> pb.CommandLookupTopicResponse:
        request_id = connection.request_id()
        command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.request_id = request_id
        command.lookupTopic.authoritative = authoritative
        if self._options.listener_name is not None:
            command.lookupTopic.advertised_listener_name = self._options.listener_name
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


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise InvalidArgumentError("pattern", pattern, f"a regular expression ({error})") from error
