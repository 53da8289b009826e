"""How a snapshot lies on a log, and reading one that is there.

The log is sealed. Its records are the entries of the snapshot, the metadata first, and then one more, the *footer*,
which says in JSON what it is: the format, the bucket's key, topic, cursor, how many entries there are, and which of
them were too large for one record and lie in several. The seal is the commit point: a log without it is what a crash
left, or a file that was cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Final, NamedTuple

from ...errors import LogCorruptedError, LogNotFoundError, LogVersionError, SnapshotFormatError, SnapshotNotFoundError
from ...ledger import Log

FORMAT: Final = 1


class Footer(NamedTuple):
    """What a snapshot says of itself; ``parts`` has how many records each entry takes, where it is not one."""

    key: str
    topic: str
    cursor: str
    entries: int
    parts: Mapping[int, int]

    @property
    def records(self) -> int:
        """Return how many records the entries take."""
        return self.entries + sum(self.parts.values()) - len(self.parts)

    def encode(self) -> bytes:
        """Return the record."""
        parts = {str(entry): count for entry, count in self.parts.items()}
        return json.dumps({"format": FORMAT, **self._asdict(), "parts": parts}).encode()


def decode_footer(data: bytes, log: str) -> Footer:
    """Read a footer.

    :raises ValueError: it is none
    :raises LogVersionError: a later release wrote it
    """
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not _is_count(version := found.pop("format", None)):
        raise ValueError("its last record is no footer")
    if version > FORMAT:
        raise LogVersionError(log, "the footer", version)
    try:
        parts = {int(entry): count for entry, count in found.pop("parts").items()}
        footer = Footer(**found, parts=parts)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("its footer is incomplete") from error
    if not all(map(_is_count, (footer.entries, *parts.values()))) or any(entry >= footer.entries for entry in parts):
        raise ValueError("its footer contradicts itself")
    return footer


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def split(entries: Iterable[bytes], largest: int) -> tuple[list[bytes], dict[int, int]]:
    """Return the records for some entries, none larger than this, and how many those that are have become."""
    records: list[bytes] = []
    parts: dict[int, int] = {}
    for number, entry in enumerate(entries):
        if len(entry) <= largest:
            records.append(bytes(entry))
            continue
        pieces = [bytes(entry[at : at + largest]) for at in range(0, len(entry), largest)]
        records += pieces
        parts[number] = len(pieces)
    return records, parts


def groups(records: Iterable[bytes], largest: int) -> Iterator[list[bytes]]:
    """Put records together for appends: about this many bytes at most, or one record."""
    group: list[bytes] = []
    size = 0
    for record in records:
        if group and size + len(record) + 4 > largest:
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record) + 4
    if group:
        yield group


class LogSnapshot:
    """A snapshot that is open for reading."""

    def __init__(self, log: Log, footer: Footer, snapshot_id: int) -> None:
        self.log = log
        self.footer = footer
        self._id = snapshot_id
        self._ends = list(accumulate(footer.parts.get(entry, 1) for entry in range(footer.entries)))

    @classmethod
    async def read(cls, log: Log, snapshot_id: int) -> LogSnapshot:
        """Look at a log that is open.

        :raises SnapshotFormatError: it is not whole, or something else
        :raises LogVersionError: a later release wrote it
        """
        with readable(snapshot_id):
            if not log.is_sealed or not log.length:
                raise SnapshotFormatError(f"snapshot {snapshot_id}", "it has no end: it was cut, or never finished")
            (data,) = await log.read(log.length - 1, log.length - 1)
            try:
                footer = decode_footer(data, log.name)
            except ValueError as error:
                raise SnapshotFormatError(f"snapshot {snapshot_id}", str(error)) from error
            if footer.records != log.length - 1:
                reason = f"its footer tells of {footer.records} records, there are {log.length - 1}"
                raise SnapshotFormatError(f"snapshot {snapshot_id}", reason)
            return cls(log, footer, snapshot_id)

    async def entries(self, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``; as many of them as there are.

        :raises SnapshotFormatError: they are damaged
        """
        last = min(last, self.footer.entries - 1)
        if first > last:
            return []
        begin = self._ends[first - 1] if first else 0
        with readable(self._id):
            records = await self.log.read(begin, self._ends[last] - 1)
        ends = [end - begin for end in self._ends[first : last + 1]]
        return [
            records[start] if end == start + 1 else b"".join(records[start:end])
            for start, end in zip([0, *ends], ends, strict=False)
        ]


@contextmanager
def readable(snapshot_id: int) -> Iterator[None]:
    """Turn a log that is damaged, or gone, into the errors that the tracker has an answer for."""
    try:
        yield
    except LogCorruptedError as error:
        raise SnapshotFormatError(f"snapshot {snapshot_id}", str(error)) from error
    except LogNotFoundError as error:
        raise SnapshotNotFoundError(snapshot_id) from error
