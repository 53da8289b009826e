"""Watching a namespace: brokers since Pulsar 2.11 tell when topics are created or deleted, on request.

What the broker tells is taken as a hint to look: the patterns that it knows are not those of Python, so it watches all
topics of the namespace. A watch ends with its connection; where there is none, or the broker cannot, there is polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from ...errors import BrokerError, BrokerRefusedError, ConnectionLostError
from .. import _pulsar_pb2 as pb
from .._connection._connection import Connection
from .._connection._core import Core
from .._connection._refusals import is_transient
from .._protocol._frames import encode_command

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_GATHER_S: Final = 0.05
"""Changes that come so close together are looked at together."""
_AGAIN_S: Final = 1.0
"""Before another watch is begun where a connection broke."""
_MOST_LOST: Final = 3
"""A broker, or a proxy, that so often broke the connection instead of an answer is not asked any more."""


class TopicWatch:
    """Of one namespace.

    :param namespace: ``tenant/namespace``
    :param is_wanted: tells by its full name whether a topic, or partition, matters
    """

    def __init__(self, core: Core, namespace: str, is_wanted: Callable[[str], bool]) -> None:
        self._core = core
        self._namespace = namespace
        self._is_wanted = is_wanted
        self._connection: Connection | None = None
        self._watcher_id = 0
        self._changed = asyncio.Event()
        self._is_refused = False
        self._lost = 0

    @property
    def is_open(self) -> bool:
        """Return whether the broker tells of changes now."""
        return self._connection is not None

    async def changed(self, timeout: float) -> None:
        """Return when something has changed, or may have, but after so many seconds at the latest."""
        try:
            async with asyncio.timeout(timeout):
                await self._open()
                await self._changed.wait()
                await asyncio.sleep(_GATHER_S if self.is_open else _AGAIN_S)
        except TimeoutError:
            pass
        self._changed.clear()

    async def _open(self) -> None:
        """Ask to be told, unless that is so; what happened before is to be looked at."""
        if self.is_open or self._is_refused:
            return
        try:
            connection = await self._core.pool.service()
            if connection.features.supports_topic_watchers:
                await self._watch(connection)
                self._changed.set()
        except Exception as error:  # the discovery logs what is worse
            if self._core.pool.is_closed:
                raise
            is_final = isinstance(error, BrokerRefusedError) and not is_transient(error)
            self._is_refused = is_final or self._lost >= _MOST_LOST
            _LOG.log(logging.INFO if self._is_refused else logging.DEBUG, "%s is not watched: %s", self, error)

    async def _watch(self, connection: Connection) -> None:
        watcher_id = connection.watcher_id()
        connection.add_watcher(watcher_id, self)
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
            connection.remove_watcher(watcher_id)
            raise
        except BaseException as error:
            self._lost += isinstance(error, BrokerError)
            self.close()
            raise
        self._lost = 0

    def close(self) -> None:
        """Have the broker tell no more, without waiting."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.remove_watcher(self._watcher_id)
        command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE)
        command.watchTopicListClose.request_id = connection.request_id()
        command.watchTopicListClose.watcher_id = self._watcher_id
        with contextlib.suppress(ConnectionLostError):
            connection.send(encode_command(command))

    def __str__(self) -> str:
        return self._namespace

    # --- what the connection tells ----------------------------------------------------------------------------------

    def on_topics_changed(self, names: Iterable[str]) -> None:
        """Have the topics looked at if one of these concerns us."""
        if any(map(self._is_wanted, names)):
            self._changed.set()

    def on_connection_lost(self, error: Exception) -> None:  # noqa: ARG002
        """Have the topics looked at, and another watch begun."""
        self._connection = None
        self._changed.set()
