"""Watches the topics of a namespace: since Pulsar 2.11 a broker reports created and deleted topics on request.

A report is only a hint to look. The broker's patterns differ from Python's, so all topics of the namespace are watched.
A watch ends with its connection. Without a connection, or with an older broker, topics are looked for at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from ...errors import BrokerError, BrokerRefusedError, ConnectionLostError
from .._connection._broker_errors import is_transient
from .._connection._connection import Connection
from .._connection._context import ClientContext
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import encode_command

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_GATHER_S: Final = 0.05
"""Changes within this time are handled together."""
_RETRY_S: Final = 1.0
"""The pause before the next watch after a connection broke."""
_MAX_LOST: Final = 3
"""A broker or proxy that broke the connection this often instead of answering is not asked again."""


class TopicListWatcher:
    """Watches one namespace.

    :param namespace: ``tenant/namespace``
    :param is_wanted: returns whether a topic or partition matters, by its full name
    """

    def __init__(self, context: ClientContext, namespace: str, is_wanted: Callable[[str], bool]) -> None:
        self._context = context
        self._namespace = namespace
        self._is_wanted = is_wanted
        self._connection: Connection | None = None
        self._watcher_id = 0
        self._changed = asyncio.Event()
        self._is_refused = False
        self._lost = 0

    @property
    def is_open(self) -> bool:
        """Return whether the broker reports changes now."""
        return self._connection is not None

    async def changed(self, timeout: float) -> None:
        """Return when topics have changed, or may have; at the latest after this many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._open()
                await self._changed.wait()
                await asyncio.sleep(_GATHER_S if self.is_open else _RETRY_S)
        except TimeoutError:
            pass
        self._changed.clear()

    async def _open(self) -> None:
        """Begin a watch unless there is one; earlier changes then remain to be found."""
        if self.is_open or self._is_refused:
            return
        try:
            connection = await self._context.pool.service()
            if connection.connected.feature_flags.supports_topic_watchers:
                await self._watch(connection)
                self._changed.set()
        except Exception as error:  # the discovery logs more serious errors
            if self._context.pool.is_closed:
                raise
            is_final = isinstance(error, BrokerRefusedError) and not is_transient(error)
            self._is_refused = is_final or self._lost >= _MAX_LOST
            _LOG.log(logging.INFO if self._is_refused else logging.DEBUG, "%s is not watched: %s", self, error)

    async def _watch(self, connection: Connection) -> None:
        watcher_id = connection.watchers.next_id()
        connection.watchers.add(watcher_id, self)
        command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST)
        command.watchTopicList.request_id = request_id = connection.request_id()
        command.watchTopicList.watcher_id = watcher_id
        command.watchTopicList.namespace = self._namespace
        command.watchTopicList.topics_pattern = f"persistent://{self._namespace}/.*"
        self._connection, self._watcher_id = connection, watcher_id
        try:
            await connection.request(command, request_id)
        except BrokerRefusedError:
            self._connection = None
            connection.watchers.remove(watcher_id)
            raise
        except BaseException as error:
            self._lost += isinstance(error, BrokerError)
            self.close()
            raise
        self._lost = 0

    def close(self) -> None:
        """End the watch at the broker, without waiting."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.watchers.remove(self._watcher_id)
        command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE)
        command.watchTopicListClose.request_id = connection.request_id()
        command.watchTopicListClose.watcher_id = self._watcher_id
        with contextlib.suppress(ConnectionLostError):
            connection.send(encode_command(command))

    def __str__(self) -> str:
        return self._namespace

    # --- events of the connection ----------------------------------------------------------------------------------

    def on_topics_changed(self, names: Iterable[str]) -> None:
        """Report a change if one of these topics is wanted."""
        if any(map(self._is_wanted, names)):
            self._changed.set()

    def on_connection_lost(self, error: Exception) -> None:  # noqa: ARG002
        """Report a change: topics may change until the next watch begins."""
        self._connection = None
        self._changed.set()
