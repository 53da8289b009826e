"""Watches the topics of a namespace: since Pulsar 2.11 a broker reports created and deleted topics on request.

A report is only a hint to look. The broker's patterns differ from Python's, so all topics of the namespace are watched.
A watch ends with its connection. Without a connection, or with an older broker, topics are looked for at intervals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from ...errors import BrokerError, BrokerRefusedError
from .._connection._connection import Connection
from .._connection._context import ClientContext
from .._connection._requests import is_transient
from .._connection._session import Session
from .._protocol import _pulsar_pb2 as pb

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
        self._session: Session | None = None
        self._changed = asyncio.Event()
        self._is_refused = False
        self._lost = 0

    @property
    def is_open(self) -> bool:
        """Return whether the broker reports changes now."""
        return self._session is not None and not self._session.is_closed

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
        session = Session(
            connection,
            connection.watchers,
            self._namespace,
            what="topic watcher",
            close=_close_command,
            on_closed=self._on_closed,
        )
        session.on_topics_changed = self._on_topics_changed
        try:
            await session.register(self._watch_command)
        except BrokerRefusedError:
            raise
        except BrokerError:
            self._lost += 1
            raise
        self._lost = 0
        self._session = session

    def _watch_command(self, watcher_id: int, request_id: int) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST)
        command.watchTopicList.request_id = request_id
        command.watchTopicList.watcher_id = watcher_id
        command.watchTopicList.namespace = self._namespace
        command.watchTopicList.topics_pattern = f"persistent://{self._namespace}/.*"
        return command

    def close(self) -> None:
        """End the watch at the broker, without waiting."""
        if self._session is not None:
            self._session.drop()

    def __str__(self) -> str:
        return self._namespace

    # --- events of the session ----------------------------------------------------------------------------------------

    def _on_topics_changed(self, names: Iterable[str]) -> None:
        """Report a change if one of these topics is wanted."""
        if any(map(self._is_wanted, names)):
            self._changed.set()

    def _on_closed(self, _session: Session, _error: Exception) -> None:
        """Report a change: topics may change until the next watch begins."""
        self._changed.set()


def _close_command(watcher_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE)
    command.watchTopicListClose.request_id = request_id
    command.watchTopicListClose.watcher_id = watcher_id
    return command
