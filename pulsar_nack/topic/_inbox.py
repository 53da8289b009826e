"""The messages that a local topic has handed to a port and that were not received yet, and the calls that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from .._waiting import WaitingCalls
from ..consumer import Delivery, SessionEvent
from ..ids import MessageId, Position

FIRST_RETRY_LEDGER: Final = 1 << 32
"""The first ledger of a retry topic: a port of a topic and its retry topic distinguishes their messages by it."""
_MIN_SWEEP: Final = 256
Members = dict[Position, set[int]]
"""Entries, and indexes of messages in their batches."""


class LocalInbox:
    """A queue of messages for each topic, from which messages are taken in turn; waiting calls are served in order.

    :param members: notes each batch that comes
    """

    def __init__(self, members: BatchMembers | None = None) -> None:
        self.failure: BaseException | None = None
        self.on_event: Callable[[SessionEvent, str], None] | None = None
        """Called with each session event of a topic; holds no reference to the port, see :mod:`._port`."""
        self._members = members
        self._here = deque[Delivery](), deque[Delivery]()
        """The messages of the topic, and those of its retry topic."""
        self._turn = 0
        self._waiters = WaitingCalls[None]()

    def __len__(self) -> int:
        return sum(map(len, self._here))

    async def get(self, check: Callable[[], None], before_wait: Callable[[], None] = lambda: None) -> Delivery:
        """Wait for a message and take it; ``check`` is called before and after each wait, and may raise an error."""
        check()
        while not any(self._here):
            before_wait()
            await self._waiters.wait(self._pass_on)
            check()
        self._turn = 1 - self._turn
        return (self._here[self._turn] or self._here[1 - self._turn]).popleft()

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Take the messages of an entry."""
        arrived = list(deliveries)
        if self._members is not None:
            self._members.arrived([delivery.id for delivery in arrived])
        for delivery in arrived:
            self._here[delivery.id.ledger >= FIRST_RETRY_LEDGER].append(delivery)
            self._waiters.wake_first(None)

    def _pass_on(self, _: None) -> None:
        if any(self._here):
            self._waiters.wake_first(None)

    def whole(self) -> list[Position]:
        """Return the entries of which no message was taken yet."""
        found = dict.fromkeys(Position(*delivery.id[:2]) for here in self._here for delivery in here)
        for here in self._here:
            if here and here[0].id.batch_index > 0:
                del found[Position(*here[0].id[:2])]
        return list(found)

    def give_back(self, positions: Iterable[Position]) -> int:
        """Drop the messages of these entries that were not received yet; return their number."""
        before = len(self)
        if not before:
            return 0
        gone = set(positions)
        for here in self._here:
            kept = [delivery for delivery in here if delivery.id[:2] not in gone]
            here.clear()
            here.extend(kept)
        return before - len(self)

    def drop(self) -> None:
        """Drop all messages."""
        for here in self._here:
            here.clear()

    def report(self, event: SessionEvent, topic: str) -> None:
        """Report an event to the consumer, before it gets anything else."""
        if self.on_event is not None:
            self.on_event(event, topic)

    def fail(self, error: BaseException) -> None:
        """Fail all receiving calls: nothing comes any more."""
        self.failure = error
        self.wake_all()

    @property
    def is_awaited(self) -> bool:
        """Return whether a call waits."""
        return bool(self._waiters)

    def wake_all(self) -> None:
        """Let all waiting calls check again."""
        self._waiters.wake_all(None)


class BatchMembers:
    """Acknowledged members of batches, for a client that acknowledges an entry once all its members are.

    As in Pulsar's clients, each delivery of an entry starts with no member acknowledged.

    :param is_passed: whether an entry lies below the mark-delete position: another consumer may have settled it
    """

    def __init__(self, is_passed: Callable[[Position], bool] = lambda _: False) -> None:
        self._open: Members = {}
        self._is_passed = is_passed
        self._sweep_at = _MIN_SWEEP

    def arrived(self, ids: Sequence[MessageId]) -> None:
        """Note the messages of an entry that came."""
        if ids and ids[0].batch_index >= 0:
            self._open[Position(*ids[0][:2])] = {message_id.batch_index for message_id in ids}
            if len(self._open) >= self._sweep_at:
                self._open = {each: rest for each, rest in self._open.items() if not self._is_passed(each)}
                self._sweep_at = max(_MIN_SWEEP, 2 * len(self._open))

    def note(self, ids: Sequence[MessageId]) -> tuple[list[MessageId], Members]:
        """Note acknowledged messages; return the entries that are complete now, and what :meth:`undo` needs."""
        completed: list[MessageId] = []
        taken: Members = {}
        for message_id in ids:
            position, index = Position(*message_id[:2]), message_id.batch_index
            rest = self._open.get(position)
            if index < 0:
                completed.append(message_id)
            if rest is None or (index >= 0 and index not in rest):
                continue
            gone = set(rest) if index < 0 else {index}
            taken.setdefault(position, set()).update(gone)
            rest -= gone
            if not rest:
                del self._open[position]
                if index >= 0:
                    completed.append(MessageId(*position))
        return completed, taken

    def note_through(self, message_id: MessageId) -> tuple[list[MessageId], Members]:
        """Note that everything up to a message of its topic is acknowledged; of whole entries return its own only."""
        ledger, entry, _, index = message_id
        first = FIRST_RETRY_LEDGER if ledger >= FIRST_RETRY_LEDGER else 0
        passed = {each: self._open.pop(each) for each in list(self._open) if (first, 0) <= each < (ledger, entry)}
        members = [MessageId(ledger, entry, batch_index=at) for at in range(index + 1)]
        completed, taken = self.note(members or [message_id])
        return completed, {**passed, **taken}

    def undo(self, taken: Members) -> None:
        """Undo :meth:`note` or :meth:`note_through`, which returned this: the acknowledgement failed."""
        for position, indexes in taken.items():
            self._open.setdefault(position, set()).update(indexes)
