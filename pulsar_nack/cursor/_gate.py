"""The gate: new messages wait while the acknowledgement state is too large to be persisted (PIP-299).

Each range of acknowledged messages takes room in the stored state. Acknowledgements that no longer fit would be lost
with the process; so dispatch stops while those of the messages in flight still fit. The gate is pure: it asks for two
figures, and answers how many messages may be dispatched.

::

    size      what persisting the live state would take now
    reserve   what the acknowledgements of everything in flight could add to it, at worst (Reserve)

    0                       resume mark          new mark      old mark  limit
    |------------------------- 75 % --------------- 7/8 -------- 63/64 ---|

Invariants, for a size that one acknowledgement makes larger by no more than ``worst_growth`` and a ledger's own bytes:

1. size + reserve is at most the limit, unless it was more when the gate was made. So whatever is acknowledged of the
   messages in flight, in any order and between any two persists, can be persisted.
2. A *new* message lies above the highest acknowledged position. It is dispatched while size + reserve stay below the
   new mark. Otherwise the gate is *paused*, until both together have fallen to the resume mark: it does not flap. The
   room between the marks is for old messages.
3. An *old* message was delivered before, or lies below the highest acknowledged position: a hole, which has to be
   delivered for the state to become smaller. It passes a paused gate while the reserve has room for it, lowest first.
4. An entry *adds no range* if it is the lowest unacknowledged one, or is no batch and has an acknowledged neighbour in
   its ledger. Acknowledging it makes a range longer, or joins two. It always passes, so the state can always drain:
   through the holes, or, without any hole, through the next new message, which is then the lowest one. It adds only
   the bytes of longer numbers, or one batch set, and the last 64th of the limit is reserved for them.

No wake-up is lost: a reader that may send nothing calls ``wait`` with its question. That registers it and then asks
again; every change of a figure is followed by ``changed``, which asks for all readers that wait. Both use the figures
as they are, not an event of the past, and each reader has its own question: it is never woken for a no.

*The reserve.* A ledger's entries are stored in the smallest of several forms. One more acknowledged entry makes most
forms longer by a number or two, :data:`RANGE_BYTES` at most. A dense state, however, is smallest as bits; then an entry
far beyond the acknowledged ones adds a bit for each entry in between, or makes numbers the smaller form again. For that
a ledger has a *stretch*: a bit for each entry by which the entries in flight reach beyond the acknowledged ones, but
not more than numbers would take.

Rejected: to use the size of the last persist only, as the proposal does. Between two persists any number of messages
could be acknowledged, and one notices too late that they do not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from .._check import check_metadata_limit
from ..clock import Clock, WallClock
from ..errors import InvalidArgumentError
from ..ids import Position
from ..index import EntryRanges

RANGE_BYTES: Final = 32
"""Most bytes of one more acknowledged range: the figure of PIP-299."""
LEDGER_BYTES: Final = 64
"""Most bytes of the first acknowledgement in a ledger beside its range: a record's head and its reference."""
DEFAULT_LIMIT: Final = 5_242_880
RESUME_RATIO: Final = 0.75
_NEW_SHARE: Final = 7 / 8
_KEPT_SHARE: Final = 64
_LIMIT: Final = "max_per_cursor_metadata_size_in_bytes"
_DEFAULT_GROWTH: Final = RANGE_BYTES + LEDGER_BYTES
_WORD_BITS: Final = 64
_WORD_BYTES: Final = 11
_DENSE_RANGE_BYTES: Final = 4
_log = logging.getLogger("pulsar_nack.cursor")

Acked = Callable[[int], EntryRanges | None]
Wake = Callable[[], None]


def worst_growth(batch_size: int = 0) -> int:
    """Return how many bytes the acknowledgements of one entry add at most, except for those of its ledger.

    An entry adds a range or a batch set, never both.

    :param batch_size: messages in the entry; 0 or 1: it is no batch
    """
    if batch_size <= 1:
        return RANGE_BYTES
    return RANGE_BYTES + _WORD_BYTES * -(-batch_size // _WORD_BITS)


@dataclass(slots=True)
class _LedgerInFlight:
    """The entries of a ledger that are in flight: how many, the lowest and highest since the first, and the stretch."""

    count: int
    first: int
    last: int
    stretch: int = 0

    def measure(self, acked: EntryRanges | None) -> None:
        """Set the stretch in bytes, given the acknowledged entries. O(1)."""
        if acked is None or acked.first is None or acked.last is None:
            self.stretch = 0
            return
        beyond = max(acked.first - self.first, 0) + max(self.last - acked.last, 0)
        self.stretch = min(beyond // 8, _DENSE_RANGE_BYTES * acked.range_count)


class Reserve:
    """The entries in flight, and the bytes that they could add. O(1) for each call.

    Add what is dispatched; discard what was acknowledged, came back, or will not be acknowledged any more.

    :param acked: returns the entries of a ledger that are acknowledged beyond the mark-delete position, None if there
        are none or they are not in memory. Without it, entries are assumed to be dispatched in order without gaps
    """

    def __init__(self, acked: Acked | None = None) -> None:
        self._acked = acked
        self._entries: dict[Position, int] = {}
        self._ledgers: dict[int, _LedgerInFlight] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, position: object) -> bool:
        return position in self._entries

    def __iter__(self) -> Iterator[Position]:
        return iter(self._entries)

    @property
    def bytes(self) -> int:
        """Return how many bytes the entries add at most."""
        return self._bytes

    def add(self, position: Position, batch_size: int = 0) -> None:
        """Add an entry; adding it again counts once."""
        growth = worst_growth(batch_size)
        before = self._entries.get(position)
        self._entries[position] = growth
        self._bytes += growth - (before or 0)
        if before is None:
            self._add_to_ledger(*position)

    def discard(self, position: Position) -> bool:
        """Remove an entry; return whether it was there."""
        growth = self._entries.pop(position, None)
        if growth is None:
            return False
        self._bytes -= growth
        ledger = self._ledgers[position[0]]
        ledger.count -= 1
        if not ledger.count:
            del self._ledgers[position[0]]
            self._bytes -= LEDGER_BYTES + ledger.stretch
        return True

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._ledgers.clear()
        self._bytes = 0

    def _add_to_ledger(self, number: int, entry: int) -> None:
        ledger = self._ledgers.get(number)
        if ledger is None:
            ledger = self._ledgers[number] = _LedgerInFlight(0, entry, entry)
            self._bytes += LEDGER_BYTES
        ledger.count += 1
        ledger.first, ledger.last = min(ledger.first, entry), max(ledger.last, entry)
        if self._acked is not None:
            before = ledger.stretch
            ledger.measure(self._acked(number))
            self._bytes += ledger.stretch - before


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A snapshot of a gate.

    :param limit: bytes that the stored state may take; 0: the gate is off, and the next two figures are 0
    :param size_bytes: what persisting the state would take now
    :param reserved_bytes: what messages in flight could add, at worst
    :param is_paused: whether new messages wait
    :param paused_since: when the pause began, in ms of the gate's clock (by default epoch ms); None: not paused
    :param times_paused: total: how often the gate paused
    """

    limit: int
    size_bytes: int
    reserved_bytes: int
    is_paused: bool
    paused_since: int | None
    times_paused: int


class DispatchGate:
    """Decides how many messages of a subscription may be dispatched.

    :param limit: bytes that the stored state may take, at least 1 024; below 1: no limit, and the gate is off
    :param size: returns the bytes that persisting the live state would take; O(1), never waits
    :param reserve: returns the bytes that messages in flight could add, see :class:`Reserve`
    :param resume_ratio: the share of the limit at which new messages are dispatched again, above 0 and at most 7/8
    :param hold_due_delayed: whether delayed messages that are due wait too, also those that would fill holes
    :param name: name of the subscription, for the warning
    :param clock: clock for the statistics
    :raises InvalidArgumentError: a limit from 1 to 1 023, or a ratio out of its range
    """

    def __init__(
        self,
        limit: int,
        size: Callable[[], int],
        reserve: Callable[[], int],
        *,
        resume_ratio: float = RESUME_RATIO,
        hold_due_delayed: bool = False,
        name: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._limit = check_metadata_limit(_LIMIT, limit)
        if isinstance(resume_ratio, bool) or not 0 < resume_ratio <= _NEW_SHARE:
            raise InvalidArgumentError("resume_ratio", resume_ratio, f"a number above 0 and at most {_NEW_SHARE}")
        self._size = size
        self._reserve = reserve
        self._resume_mark = int(self._limit * resume_ratio)
        self._new_mark = int(self._limit * _NEW_SHARE)
        self._old_mark = self._limit - self._limit // _KEPT_SHARE
        self._holds_due_delayed = hold_due_delayed
        self._name = name
        self._clock = clock or WallClock()
        self._paused_since: int | None = None
        self._times_paused = 0
        self._needed = _DEFAULT_GROWTH
        self._waiting: dict[Wake, Callable[[], bool]] = {}

    @property
    def is_on(self) -> bool:
        """Return whether there is a limit."""
        return self._limit > 0

    @property
    def is_paused(self) -> bool:
        """Return whether new messages wait, as of the last question or change."""
        return self._paused_since is not None

    def admit_new(self, wanted: int, *, adds_range: bool = True, growth: int | None = None) -> int:
        """Return how many new messages may be dispatched now, from 0 to ``wanted``; this may pause the gate.

        Ask again after they have been added to the reserve: a few more may still pass.

        :param adds_range: False if the first of them is the lowest unacknowledged message, which always passes
        :param growth: what an entry may add, see :func:`worst_growth`; None: no batches
        """
        if not self.is_on or wanted <= 0:
            return max(wanted, 0)
        self._needed = _each(growth)
        self._update_pause()
        admitted = 0 if self.is_paused else self._fitting(wanted, self._new_mark, self._needed)
        if not admitted:
            self._pause()
        return max(admitted, 0 if adds_range else 1)

    def admit_old(self, wanted: int, *, adds_range: bool = True, growth: int | None = None) -> int:
        """Return how many old messages may be dispatched: delivered before, or below the highest acknowledged position.

        Take the lowest first. If fewer are admitted than there are, look for those that add no range: each of them
        passes. A pause does not hold old messages.

        :param adds_range: False if the first one is the lowest unacknowledged entry, or is no batch and next to an
            acknowledged one: it always passes
        :param growth: what an entry may add, see :func:`worst_growth`; None: no batches
        """
        if not self.is_on or wanted <= 0:
            return max(wanted, 0)
        return max(self._fitting(wanted, self._old_mark, _each(growth)), 0 if adds_range else 1)

    def admit_due(self, wanted: int, *, is_below: bool, adds_range: bool = True, growth: int | None = None) -> int:
        """Return how many delayed messages that are due may be dispatched.

        :param is_below: whether they lie below the highest acknowledged position: then they are old, else new
        :param adds_range: as for old or for new messages
        :param growth: what an entry may add, see :func:`worst_growth`; None: no batches
        """
        if not self.is_on or wanted <= 0:
            return max(wanted, 0)
        self._update_pause()
        if self.is_paused and self._holds_due_delayed:
            return 0
        admit = self.admit_old if is_below else self.admit_new
        return admit(wanted, adds_range=adds_range, growth=growth)

    def wait(self, wake: Wake, may_go: Callable[[], bool]) -> bool:
        """Register a reader that may send nothing, and ask again; return False if it need not wait after all.

        ::

            while not gate.admit_new(1):
                if gate.wait(woken.set, lambda: gate.admit_new(1) > 0):
                    await woken.wait()

        :param wake: called once, by :meth:`changed` or :meth:`reset`, when something may be sent
        :param may_go: the reader's question, asked at each change
        """
        self._waiting[wake] = may_go
        if may_go():
            self.forget(wake)
            return False
        return True

    def forget(self, wake: Wake) -> None:
        """Remove a reader that does not wait any more, as when it was cancelled."""
        self._waiting.pop(wake, None)

    def changed(self) -> None:
        """Check the figures again after an acknowledgement, a persist, or an entry that left flight. O(readers).

        Readers that may send something are woken. If one raises, the error is raised here after all were called.
        """
        if self._waiting or self.is_paused:
            self._update_pause()
            self._wake([wake for wake, may_go in list(self._waiting.items()) if may_go()])

    def reset(self) -> None:
        """End the pause and wake all readers: after a skip, a clear of the backlog, a seek or a reset."""
        self._paused_since = None
        self._wake(list(self._waiting))

    def statistics(self) -> GateStatistics:
        """Return a snapshot of the gate's figures. A gate that is off has sizes of 0."""
        size, reserve = (self._size(), self._reserve()) if self.is_on else (0, 0)
        return GateStatistics(self._limit, size, reserve, self.is_paused, self._paused_since, self._times_paused)

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _fitting(self, wanted: int, mark: int, each: int) -> int:
        return min(wanted, max((mark - self._total()) // each, 0))

    def _total(self) -> int:
        return self._size() + self._reserve()

    def _update_pause(self) -> None:
        if self.is_paused:
            total = self._total()
            if total <= self._resume_mark and total + self._needed <= self._new_mark:
                self._paused_since = None

    def _pause(self) -> None:
        if self.is_paused:
            return
        self._paused_since = self._clock.now_ms()
        self._times_paused += 1
        if self._times_paused == 1:
            _log.warning(
                "dispatch%s pauses: the acknowledgement state takes %d bytes and messages in flight may add %d, of %d"
                " that may be stored; acknowledging or skipping messages in order makes it smaller",
                f" to {self._name}" if self._name else "",
                self._size(),
                self._reserve(),
                self._limit,
            )

    def _wake(self, ready: list[Wake]) -> None:
        errors = []
        for wake in ready:
            if self._waiting.pop(wake, None) is None:
                continue  # a reader that was called before removed it
            try:
                wake()
            except Exception as error:  # noqa: BLE001 - the others are called first
                errors.append(error)
        if errors:
            raise errors[0]


def adds_range(
    position: Position, *, lowest: Position | None, is_acked: Callable[[Position], bool], batch_size: int = 0
) -> bool:
    """Return whether acknowledging an entry could add a range or a batch set; if not, it always passes the gate.

    :param lowest: the lowest unacknowledged entry, None if it is not known
    :param is_acked: returns whether an entry is acknowledged; asked for the neighbours in the same ledger
    :param batch_size: messages in the entry; 0 or 1: it is no batch
    """
    if position == lowest:
        return False
    ledger, entry = position
    neighbours = (Position(ledger, each) for each in (entry - 1, entry + 1) if each >= 0)
    return batch_size > 1 or not any(map(is_acked, neighbours))


def _each(growth: int | None) -> int:
    """Return what an entry adds at most, as if it were the only one of its ledger."""
    return _DEFAULT_GROWTH if growth is None else growth + LEDGER_BYTES
