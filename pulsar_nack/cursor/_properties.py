"""The properties of a cursor: changes take effect when they are durable, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from .._tasks import set_error
from ..errors import InvalidArgumentError
from .format._marker import properties_size

MAX_TEXT: Final = 1 << 19
_SHOWN: Final = 50


class _Change(NamedTuple):
    key: str
    value: str | None
    growth: int
    done: asyncio.Future[None]


class Properties:
    """The properties that are durable, and the changes that wait for the next write.

    :param room: how many bytes of properties can be stored
    """

    def __init__(self, values: Mapping[str, str], room: int) -> None:
        self._values = dict(values)
        self._room = room
        self._waiting: list[_Change] = []
        self._taken: list[_Change] = []
        self._in_doubt: set[str] = set()
        self.view: Mapping[str, str] = MappingProxyType(self._values)
        self.size = properties_size(self._values)

    @property
    def is_dirty(self) -> bool:
        """Return whether a change waits."""
        return any(not change.done.done() for change in self._waiting)

    async def change(self, key: str, value: str | None, flush: Callable[[], Awaitable[None]]) -> None:
        """Set a property, or remove it if ``value`` is None; durable when it returns.

        :param flush: writes all changes that wait
        :raises InvalidArgumentError: all properties would take more than can be stored; nothing has changed
        :raises LedgerError: the change could not be written; nothing has changed
        """
        if value is None and not self._may_have(key):
            return
        growth = 0 if value is None else self._growth(key, value)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Change(key, value, growth, done))
        try:
            await flush()
            await done
        finally:
            if not done.cancel() and not done.cancelled():
                done.exception()  # the caller has it already

    def _growth(self, key: str, value: str) -> int:
        """Return how many bytes more the properties take with this one; changes under way may fail or not.

        :raises InvalidArgumentError: there is no room for them
        """
        before = self._values.get(key)
        growth = _size(key, value) - (0 if before is None else _size(key, before))
        under_way = sum(max(change.growth, 0) for change in (*self._taken, *self._waiting))
        size = self.size + len(self._values) + under_way + growth
        if growth > 0 and size > self._room:
            expected = f"at most {self._room:,} bytes of names and values"
            raise InvalidArgumentError("properties", f"{size:,} bytes with {key[:_SHOWN]!r}", expected)
        return growth

    def _may_have(self, key: str) -> bool:
        """Return whether a property exists, may exist, or will exist after the waiting changes."""
        return (
            key in self._values
            or key in self._in_doubt
            or any(change.key == key for change in (*self._taken, *self._waiting))
        )

    def take(self) -> list[_Change]:
        """Return the changes that wait, for a write; cancelled ones are left out."""
        waiting, self._waiting = self._waiting, []
        self._taken = [change for change in waiting if not change.done.done()]
        return self._taken

    def with_changes(self, changes: Sequence[_Change]) -> dict[str, str]:
        """Return the properties after these changes."""
        values = dict(self._values)
        for change in changes:
            if change.value is None:
                values.pop(change.key, None)
            else:
                values[change.key] = change.value
        return values

    def commit(self, changes: Sequence[_Change]) -> None:
        """Apply changes that are durable now, and end their calls."""
        self._taken = []
        self._in_doubt.clear()
        if not changes:
            return
        values = self.with_changes(changes)
        self._values.clear()
        self._values.update(values)
        self.size = properties_size(values)
        for change in changes:
            if not change.done.done():
                change.done.set_result(None)

    def fail(self, changes: Sequence[_Change], error: BaseException) -> None:
        """Raise an error in the callers of changes that could not be written; nothing has changed."""
        self._taken = []
        self._in_doubt.update(change.key for change in changes)
        for change in changes:
            set_error(change.done, error)


def _size(key: str, value: str) -> int:
    return properties_size({key: value}) + 1  # in either format
