"""The properties of a cursor: a change counts when it is durable, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import InvalidArgumentError
from ._chain import strings_size
from ._line import refuse

_MOST_TEXT: Final = 1 << 19


class _Change(NamedTuple):
    key: str
    value: str | None
    done: asyncio.Future[None]


class Properties:
    """What is durable, and the changes that wait for the next write."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._waiting: list[_Change] = []
        self._taken: list[_Change] = []
        self._in_doubt: set[str] = set()
        self.view: Mapping[str, str] = MappingProxyType(self._values)
        self.size = strings_size(self._values)

    @property
    def is_dirty(self) -> bool:
        """Return whether a change waits."""
        return any(not change.done.done() for change in self._waiting)

    def change(self, key: str, value: str | None) -> asyncio.Future[None]:
        """Have a property set, or removed where there is no value; the future is done when that is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Change(key, value, done))
        return done

    def has(self, key: str) -> bool:
        """Return whether a property is there, may be, or will be when the changes that wait are made."""
        return (
            key in self._values
            or key in self._in_doubt
            or any(change.key == key for change in (*self._taken, *self._waiting))
        )

    def take(self) -> list[_Change]:
        """Return the changes that wait, for a write; those that were given up are not among them."""
        waiting, self._waiting = self._waiting, []
        self._taken = [change for change in waiting if not change.done.done()]
        return self._taken

    def with_changes(self, changes: Sequence[_Change]) -> dict[str, str]:
        """Return the properties as they are after these changes."""
        values = dict(self._values)
        for change in changes:
            if change.value is None:
                values.pop(change.key, None)
            else:
                values[change.key] = change.value
        return values

    def commit(self, changes: Sequence[_Change]) -> None:
        """Let changes count, which are durable now."""
        self._taken = []
        self._in_doubt.clear()
        if not changes:
            return
        values = self.with_changes(changes)
        self._values.clear()
        self._values.update(values)
        self.size = strings_size(values)
        for change in changes:
            if not change.done.done():
                change.done.set_result(None)

    def give_up(self, changes: Sequence[_Change], error: BaseException) -> None:
        """Tell those who wait that their changes could not be written; nothing has changed."""
        self._taken = []
        self._in_doubt.update(change.key for change in changes)
        for change in changes:
            refuse(change.done, error)


def check_text(field: str, value: object) -> None:
    """Refuse what cannot be a key or value of a property."""
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise InvalidArgumentError(field, value, f"text, at most {_MOST_TEXT:,} characters")
