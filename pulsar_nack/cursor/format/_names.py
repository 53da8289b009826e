"""The names of a cursor's logs, and of the cursors of bucket trackers and of a local topic's subscriptions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from ...errors import InvalidArgumentError

_CURSOR: Final = r"[A-Za-z0-9_#][A-Za-z0-9_.#-]{0,170}"
CURSOR_LOG_NAME: Final = re.compile(rf"({_CURSOR})-(\d{{10}})(-snapshot)?")
"""Matches the name of a cursor's log, or of its snapshots; the groups are the cursor, the generation, the suffix."""
_SUBSCRIPTION: Final = "subscription."
_DELAYED: Final = "delayed."


class LogNames(NamedTuple):
    """The names of one cursor's logs; made by :func:`log_names`."""

    cursor: str

    def log(self, generation: int) -> str:
        """Return the name of the log of a generation."""
        return f"{self.cursor}-{generation:010}"

    def snapshot(self, generation: int) -> str:
        """Return the name of the log of snapshots of a generation."""
        return f"{self.log(generation)}-snapshot"

    def generations(self, names: Iterable[str]) -> list[int]:
        """Return the generations that have a log, from the lowest."""
        return self._matches(names, is_snapshot=False)

    def snapshots(self, names: Iterable[str]) -> list[int]:
        """Return the generations that have snapshots, from the lowest."""
        return self._matches(names, is_snapshot=True)

    def _matches(self, names: Iterable[str], *, is_snapshot: bool) -> list[int]:
        found = [match for name in names if (match := CURSOR_LOG_NAME.fullmatch(name))]
        return sorted(int(match[2]) for match in found if match[1] == self.cursor and bool(match[3]) is is_snapshot)


def log_names(cursor: object) -> LogNames:
    """Return the names of a cursor's logs.

    :raises InvalidArgumentError: this cannot be a cursor's name
    """
    if not isinstance(cursor, str) or not re.fullmatch(_CURSOR, cursor):
        raise InvalidArgumentError(
            "name", cursor, "1 to 171 letters, digits, or any of _ - . #, not beginning with - or ."
        )
    return LogNames(cursor)


def cursors_in(names: Iterable[str]) -> set[str]:
    """Return the cursors that have logs with these names."""
    return {match[1] for name in names if (match := CURSOR_LOG_NAME.fullmatch(name))}


def delayed_cursor(name: str) -> str:
    """Return the name in the store of a bucket tracker's cursor, which no cursor of acknowledgements has."""
    return _DELAYED + name


def delayed_cursor_of(cursor: str) -> str | None:
    """Return the name that the bucket tracker's cursor was opened with, None if this is another kind of cursor."""
    name = cursor.removeprefix(_DELAYED)
    return None if name == cursor else name


def subscription_cursor(subscription: str) -> str:
    """Return the name of a subscription's cursor: with %-escapes, in which % is written as #."""
    return _SUBSCRIPTION + quote(subscription, safe="").replace("~", "%7E").replace("%", "#")


def subscription_of(cursor: str) -> str | None:
    """Return the subscription whose cursor has this name, None if it is not that of a subscription."""
    quoted = cursor.removeprefix(_SUBSCRIPTION)
    return unquote(quoted.replace("#", "%")) if quoted and quoted != cursor else None
