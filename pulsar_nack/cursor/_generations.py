"""What the logs of a cursor are called, and which there are.

For a cursor NAME::

    NAME-0000000003             records: the ledgers' states, and markers that say which of them count
    NAME-0000000003-snapshot    mark-delete positions, for when no marker can be used any more

A cursor goes on in a log with the next number when its log has grown. What has a lower number than the log in use, or
holds no marker, is what a crash left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ..errors import InvalidArgumentError

_SNAPSHOT: Final = "-snapshot"
_NAME: Final = re.compile(r"[A-Za-z0-9_#][A-Za-z0-9_.#-]{0,170}")


class Names(NamedTuple):
    """The names of one cursor's logs.

    :raises InvalidArgumentError: this can be no name of a log
    """

    cursor: str

    def log(self, generation: int) -> str:
        """Return what the log of a generation is called."""
        return f"{self.cursor}-{generation:010}"

    def snapshot(self, generation: int) -> str:
        """Return what the log of snapshots beside it is called."""
        return self.log(generation) + _SNAPSHOT

    def generations(self, names: Iterable[str]) -> list[int]:
        """Return the generations of which there is a log, from the lowest."""
        return self._matches(names, "")

    def snapshots(self, names: Iterable[str]) -> list[int]:
        """Return the generations of which there are snapshots, from the lowest."""
        return self._matches(names, _SNAPSHOT)

    def own(self, names: Iterable[str]) -> list[str]:
        """Return which of these names belong to the cursor, in their order."""
        return [name for name in names if re.fullmatch(rf"{re.escape(self.cursor)}-\d{{10}}({_SNAPSHOT})?", name)]

    def _matches(self, names: Iterable[str], suffix: str) -> list[int]:
        pattern = re.compile(rf"{re.escape(self.cursor)}-(\d{{10}}){suffix}")
        return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def names_of(cursor: object) -> Names:
    """Return the names of a cursor's logs.

    :raises InvalidArgumentError: this cannot be a cursor's name
    """
    if not isinstance(cursor, str) or not _NAME.fullmatch(cursor):
        raise InvalidArgumentError(
            "name", cursor, "1 to 171 letters, digits, or any of _ - . #, not beginning with - or ."
        )
    return Names(cursor)
