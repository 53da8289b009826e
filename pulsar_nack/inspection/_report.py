"""The reports of an inspection: frozen records, printed as tables and as JSON.

Times are epoch ms, sizes bytes. A value that could not be read is None, and a damage says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

DamageKind = Literal["torn", "damaged", "missing", "newer", "unreadable", "inconsistent"]
"""The kinds of damage.

- ``torn``: the end of the last write is missing, as after a crash; the next opening cuts it off, and nothing is lost
- ``damaged``: bytes are not those that were written
- ``missing``: a file or a log does not exist, although something refers to it
- ``newer``: a later release wrote it
- ``unreadable``: the operating system refused to read it
- ``inconsistent``: the bytes are whole, but contradict each other
"""
LogKind = Literal["snapshot", "delayed cursor", "nacks", "cursor", "topic", "plain"]
"""The owner of a log: a bucket snapshot, the cursor of a bucket tracker, a consumer's durable state, a cursor of
acknowledgements, a local topic, or something else."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of a log: the file and the byte offset, if they are known, the kind, and the reason."""

    log: str
    file: str
    offset: int | None
    kind: DamageKind
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """A file of a log: its first record, how many good records of it count, and its size in bytes."""

    file: str
    first: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogReport:
    """A log and its files."""

    name: str
    kind: LogKind
    records: int
    bytes: int
    is_sealed: bool
    segments: tuple[SegmentReport, ...]


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """A segment of a bucket snapshot: its earliest and latest time, its messages, and their ledgers."""

    first_at: int | None
    last_at: int
    messages: int
    ledgers: int


@dataclass(frozen=True, slots=True)
class BucketReport:
    """A bucket of delayed messages: its snapshot, the key that names it, and its segments.

    ``key`` is None for a snapshot that nothing names: the next opening deletes it. ``log`` is None if it is missing.
    """

    snapshot_id: int
    key: str | None
    log: str | None
    topic: str
    subscription: str
    bytes: int
    messages: int | None
    segments: tuple[SegmentTimes, ...]

    @property
    def first_at(self) -> int | None:
        """Return the earliest time."""
        return min((each.first_at for each in self.segments if each.first_at is not None), default=None)

    @property
    def last_at(self) -> int | None:
        """Return the latest time."""
        return max((each.last_at for each in self.segments), default=None)


@dataclass(frozen=True, slots=True)
class DelayedReport:
    """A bucket tracker: its cursor and its buckets; ``mark_delete`` is None if the cursor is kept elsewhere."""

    cursor: str | None
    log: str | None
    mark_delete: tuple[int, int] | None
    properties: dict[str, str]
    buckets: tuple[BucketReport, ...]


@dataclass(frozen=True, slots=True)
class BuiltReport:
    """The index that ``build-index`` built in this folder, by its manifest; the folder may have changed since."""

    messages: int
    buckets: int
    segments: int
    bytes: int
    first_at: int | None
    last_at: int | None


@dataclass(frozen=True, slots=True)
class WaitingLedger:
    """Unsettled messages of one ledger."""

    ledger: int
    partition: int
    topic: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class NacksReport:
    """A consumer's durable state.

    ``unsettled`` messages were nacked or delivered, and not acknowledged; ``first_at`` and ``last_at`` are their
    deadlines, or the times of their delivery. ``acknowledged`` messages are remembered in case the broker has not
    received that.
    """

    logs: tuple[str, ...]
    ignored: tuple[str, ...]
    last_written_at: int | None
    unsettled: int
    first_at: int | None
    last_at: int | None
    most_redeliveries: int
    acknowledged: int
    ledgers: tuple[WaitingLedger, ...]


@dataclass(frozen=True, slots=True)
class AckedLedger:
    """The acknowledgement state of one ledger above the mark-delete position.

    ``holes`` are runs of unacknowledged entries below its highest acknowledged one, ``batches`` entries of which only
    some messages are acknowledged, ``bytes`` the stored size of this state, in the records with these numbers.
    """

    ledger: int
    acked: int
    ranges: int
    holes: int
    batches: int
    bytes: int
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CursorReport:
    """A cursor of acknowledgements, as the next opening finds it.

    ``form`` is how the state is stored: ``ledgers`` (PIP-81), ``single`` (all in one record, the legacy format), or
    ``snapshot`` (the mark-delete position only: no marker can be used). ``marker`` is the number of that record,
    ``size_bytes`` the size of it and the ledgers, ``ignored`` lists logs of the cursor that do not count.
    """

    name: str
    log: str
    form: str
    marker: int
    markers: int
    mark_delete: tuple[int, int]
    properties: dict[str, str]
    size_bytes: int
    records_in_use: int
    ignored: tuple[str, ...]
    ledgers: tuple[AckedLedger, ...]


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """A ledger of a local topic."""

    ledger: int
    entries: int
    bytes: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """A subscription of a local topic: its cursor, and how many entries it has not acknowledged.

    ``mark_delete`` and ``backlog`` are None if the cursor has no records yet.
    """

    name: str
    cursor: str
    mark_delete: tuple[int, int] | None
    backlog: int | None


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A local topic: its ledgers and its subscriptions."""

    ledgers: tuple[TopicLedger, ...]
    subscriptions: tuple[SubscriptionReport, ...]


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A folder of logs.

    ``leftovers`` are files of ours that the next opening removes, ``foreign`` files belong to others. ``built`` is set
    if ``build-index`` made the folder.
    """

    path: str
    logs: tuple[LogReport, ...] = ()
    delayed: tuple[DelayedReport, ...] = ()
    nacks: NacksReport | None = None
    cursors: tuple[CursorReport, ...] = ()
    topic: TopicReport | None = None
    built: BuiltReport | None = None
    leftovers: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    damage: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class FolderReport:
    """The contents of a folder: one store, or several below it."""

    path: str
    stores: tuple[StoreReport, ...] = field(default=())

    @property
    def damage(self) -> Iterator[Damage]:
        """Iterate over all damage."""
        return (damage for store in self.stores for damage in store.damage)

    @property
    def is_damaged(self) -> bool:
        """Return whether there is any damage."""
        return next(self.damage, None) is not None

    @property
    def is_complete(self) -> bool:
        """Return whether everything was read; False if a package is missing for that, see ``notes``."""
        return not any(store.notes for store in self.stores)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can represent."""
        return {**asdict(self), "is_damaged": self.is_damaged, "is_complete": self.is_complete}
