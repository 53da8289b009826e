"""The table view: the newest value of each key of a topic, kept up to date by a task that reads the topic."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from weakref import WeakSet

from .._foreign import quoted
from .._lifetime import ClosesWhenDropped, Opening, check_loop
from .._tasks import own_copy
from ..consumer import ReceivedMessage
from ..errors import ClosedError
from ._reader import Reader

Decode = Callable[[ReceivedMessage], Any]
"""Returns the value of a message."""

_LOG: Final = logging.getLogger("pulsar_nack.wire")


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of a table view.

    :param key: the key
    :param value: its new value; None: it was removed
    :param message: the message that made the change
    """

    key: str
    value: Any
    message: ReceivedMessage


class TableChanges(AsyncIterator[TableChange]):
    """The changes of a table view from one moment on.

    If a key changes again before its change is taken, only the newest change is returned. So at most one change for
    each key waits, however slow the loop is.
    """

    def __init__(self, view: TableView) -> None:
        self._view = view
        self._waiting: OrderedDict[str, TableChange] = OrderedDict()
        self._came = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableChange:
        """Return the next change; iteration ends when the view is closed. A cancelled call loses nothing.

        :raises PulsarNackError: reading the topic failed
        """
        while not self._waiting:
            self._view._check()
            if self._view._is_closed:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        return self._waiting.popitem(last=False)[1]

    def _put(self, change: TableChange) -> None:
        self._waiting[change.key] = change
        self._came.set()


class TableView(ClosesWhenDropped, Mapping[str, Any]):
    """The newest value of each key of a topic, as a mapping that follows the topic. Get it from ``client.table_view``.

    Use it as ``async with``, or call :meth:`aclose`, in one event loop. It takes one value of memory for each key. A
    message without a value, or with an empty one, removes its key, as compaction does. Messages without a key are
    ignored and counted. A message whose value cannot be read is logged and counted, and leaves its key as it was. If
    reading the topic fails, each access raises the error, because the values may be old. After :meth:`aclose` the
    values stay as they are.
    """

    def __init__(self, reader: Reader, decode: Decode) -> None:
        self.without_key = 0
        """How many messages had no key."""
        self.unreadable = 0
        """How many messages had a value that could not be read."""
        self._reader = reader
        self._topic = reader._port.names[0]
        self._decode = decode
        self._loop = asyncio.get_running_loop()
        self._values: dict[str, Any] = {}
        self._changes: WeakSet[TableChanges] = WeakSet()
        self._fault: Exception | None = None
        self._is_closed = False
        self._following: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._inner = self._twin()

    @classmethod
    async def open(cls, reader: Reader, decode: Decode) -> Self:
        """Read the topic to its end, and follow it from there; owns the reader, also if this fails."""
        self = cls(reader, decode)
        try:
            async for message in reader.read_to_end():
                self._apply(message)
            self._following = asyncio.create_task(self._inner._follow(), name="pulsar_nack.wire table view")
        except BaseException:
            self._is_closed = True
            await reader.aclose()
            raise
        return self

    async def _follow(self) -> None:
        try:
            while True:
                self._apply(await self._reader.read())
        except BaseException as error:
            if not self._is_closed:  # otherwise this is its end
                self._fault = error if isinstance(error, Exception) else ClosedError("the table view")
                _LOG.error("the view of %s ends: %r", self._topic, error)
            if not isinstance(error, Exception):
                raise
        finally:
            for changes in list(self._changes):
                changes._came.set()

    def _apply(self, message: ReceivedMessage) -> None:
        key = message.key
        if key is None:
            self.without_key += 1
            return
        try:
            value = self._decode(message) if message.data else None
        except Exception as error:  # noqa: BLE001 - also what the user's function raises
            self.unreadable += 1
            which = f"the value of {quoted(key)} in {message.id!r}"  # the error may have the whole payload
            _LOG.warning("%s: %s cannot be read: %s", message.topic, which, quoted(error))
            return
        if value is not None:
            self._values[key] = value
        elif self._values.pop(key, None) is None:
            return
        for changes in list(self._changes):
            changes._put(TableChange(key, value, message))

    # --- the mapping --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        self._check()
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        self._check()
        return iter(self._values)

    def __len__(self) -> int:
        self._check()
        return len(self._values)

    __hash__ = object.__hash__  # the client keeps its views in a set

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else "" if self._fault is None else f", ended: {self._fault}"
        return f"<TableView of {self._topic!r}, {len(self._values)} keys{state}>"

    # --- changes ------------------------------------------------------------------------------------------------------

    def changes(self) -> TableChanges:
        """Return an iterator over the changes from now on; ``async for`` over the view itself does the same.

        :raises PulsarNackError: reading the topic failed
        """
        check_loop(self._loop, "the table view")
        self._check()
        made = TableChanges(self)
        self._changes.add(made)
        return made

    __aiter__ = changes

    def _check(self) -> None:
        if self._fault is not None:
            raise own_copy(self._fault)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stop following the topic, and end iterations over changes. Idempotent, in any loop.

        :raises WrongLoopError: the view is open, and was used in another event loop
        """
        if self._closing is None or not self._closing.done():
            check_loop(self._loop, "the table view")
            await asyncio.shield(self._begin_close())

    close = aclose

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        return None if self._is_closed else self._loop

    def _begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._is_closed = True
            self._closing = self._loop.create_task(self._inner._close(), name="pulsar_nack.wire table view closing")
        return self._closing

    async def _close(self) -> None:
        await self._reader.aclose()
        if self._following is not None:
            await asyncio.wait([self._following])


Viewing = Opening[TableView]
"""A table view to be opened: enter it with ``async with``, or ``await`` it and close the view yourself."""
