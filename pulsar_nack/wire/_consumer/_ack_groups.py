"""Acknowledgements on their way: collected for a moment, sent as one command, done when the broker's receipt arrives.

While no command is unanswered, a group is sent in the loop's next turn, so that a single acknowledgement takes one
round trip. Otherwise a group is sent when the last receipt arrives, when it is full, or when it is old enough; so
groups grow with the number of acknowledgements.

A group stays here until its receipt arrives. If the connection breaks first, the group is sent again on the next one,
and may reach the broker twice, which does no harm. Each call gets the outcome once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from ...consumer import AcksDone
from ...errors import ConnectionLostError

T = TypeVar("T")
Done = Callable[[Exception | None], None]
"""Called in a later turn of the loop with None, or with the error."""

MAX_ENTRIES: Final = 1_000
"""Most entries in one command."""


class AckGroup:
    """The entries that one command acknowledges.

    ``entries`` has for each entry the batch members that remain unacknowledged, as bits; 0: none. With
    ``is_cumulative`` there is one entry, and all before it are acknowledged too.
    """

    __slots__ = ("all_done", "entries", "is_cumulative", "tokens", "waiting")

    def __init__(self, *, is_cumulative: bool = False) -> None:
        self.entries: dict[tuple[int, int], int] = {}
        self.is_cumulative = is_cumulative
        self.tokens: list[Any] = []
        self.all_done: AcksDone[Any] | None = None
        """Called with all ``tokens`` together."""
        self.waiting: list[Done] = []

    def finish(self, error: Exception | None) -> None:
        """Report the outcome to all callers of this group."""
        tokens, self.tokens, waiting, self.waiting = self.tokens, [], self.waiting, []
        try:
            if self.all_done is not None:
                self.all_done(tokens, error)
        finally:  # also if a consumer's own trace raises
            if waiting:
                call_all(waiting, error)


Answered = Callable[[object, Exception | None], None]
"""Called with the broker's receipt, or with the error."""
Send = Callable[[AckGroup, Answered], None]
"""Sends a group, and has the second argument called once. Raises ConnectionLostError."""


class AckGroupingTracker:
    """The unconfirmed acknowledgements of one consumer, through all its connections.

    :param group_ms: most that an acknowledgement waits for others while some are unanswered
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, group_ms: int) -> None:
        self._loop = loop
        self._group_s = group_ms / 1000
        self._send_group: Send | None = None
        self._open: AckGroup | None = None
        self._unanswered: dict[AckGroup, None] = {}
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        """Return how many entries are not confirmed."""
        return sum(len(group.entries) for group in self._unconfirmed())

    def add(self, position: tuple[int, int], remaining: int, token: T, done: AcksDone[T]) -> None:
        """Acknowledge an entry except its remaining members; ``done`` gets the token, maybe with those of others."""
        group = self._open or self._open_group()
        entries = group.entries
        entries[position] = remaining and remaining & entries.get(position, remaining)
        if group.all_done is done:
            group.tokens.append(token)
        elif group.all_done is None:
            group.all_done = done
            group.tokens.append(token)
        else:
            group.waiting.append(lambda error: done([token], error))
        if len(entries) >= MAX_ENTRIES:
            self.flush()

    def add_all(self, positions: Sequence[tuple[int, int]], done: Done) -> None:
        """Acknowledge whole entries; ``done`` is called once, when all of them are answered."""
        part_done = joined(len(positions), done)
        for position in positions:
            group = self._open or self._open_group()
            group.entries[position] = 0
            group.waiting.append(partial(part_done, (None,)))  # `all_done` stays free for calls that share one
            if len(group.entries) >= MAX_ENTRIES:
                self.flush()

    def add_cumulative(self, position: tuple[int, int], remaining: int, done: Done) -> None:
        """Acknowledge everything before an entry, and the entry except its remaining members."""
        self.flush()
        group = AckGroup(is_cumulative=True)
        group.entries[position] = remaining
        group.waiting.append(done)
        self._unanswered[group] = None
        self._send(group)

    def flush(self) -> None:
        """Send the collected acknowledgements now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group, self._open = self._open, None
        if group is not None:
            self._unanswered[group] = None
            self._send(group)

    def connected(self, send: Send) -> None:
        """Use a new connection; first send unanswered groups again."""
        self._send_group = send
        for group in list(self._unanswered):
            self._send(group)
        self.flush()

    def disconnected(self) -> None:
        """Keep unanswered groups for the next connection; receipts from this one are ignored from now on."""
        self._send_group = None

    def fail(self, error: Exception | None) -> None:
        """Fail everything that is not confirmed; None: it succeeds, as there is nothing left to acknowledge."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.disconnected()
        groups = self._unconfirmed()
        self._unanswered.clear()
        self._open = None
        call_all([group.finish for group in groups], error)

    async def settled(self) -> None:
        """Send the collected acknowledgements, and wait until all that were made before this call are answered."""
        self.flush()
        groups = list(self._unanswered)
        if not groups:
            return
        all_settled: asyncio.Future[None] = self._loop.create_future()
        group_done = joined(len(groups), lambda _: None if all_settled.done() else all_settled.set_result(None))
        for group in groups:
            group.waiting.append(partial(group_done, (None,)))
        await all_settled

    def _unconfirmed(self) -> list[AckGroup]:
        return [*self._unanswered, *([self._open] if self._open is not None else [])]

    def _open_group(self) -> AckGroup:
        group = self._open
        if group is None:
            group = self._open = AckGroup()
            if not self._unanswered or not self._group_s:
                self._timer = self._loop.call_soon(self.flush)
            else:
                self._timer = self._loop.call_later(self._group_s, self.flush)
        return group

    def _send(self, group: AckGroup) -> None:
        if self._send_group is None:
            return
        try:
            self._send_group(group, partial(self._on_receipt, group, self._send_group))
        except ConnectionLostError:  # `disconnected` follows; the group is sent again on the next connection
            return

    def _on_receipt(self, group: AckGroup, sent_by: Send, _receipt: object, error: Exception | None) -> None:
        """Finish a group, unless the connection that it was sent on is lost: it is sent again on the next one."""
        if sent_by is not self._send_group or isinstance(error, ConnectionLostError):
            return
        if self._unanswered.pop(group, self) is self:
            return
        group.finish(error)
        if not self._unanswered and self._open is not None:
            self.flush()


def call_all(calls: Sequence[Done], error: Exception | None) -> None:
    """Pass an outcome to all of several callers, in order; if one raises, raise that at the end."""
    with ExitStack() as stack:
        for done in reversed(calls):
            stack.callback(done, error)


def joined(parts: int, done: Done) -> AcksDone[None]:
    """Return a callback that calls ``done`` with the first error, once it was called with a token of each part."""
    left = parts
    first: Exception | None = None

    def part_done(tokens: Sequence[None], error: Exception | None) -> None:
        nonlocal left, first
        left, first = left - len(tokens), first or error
        if not left:
            done(first)

    return part_done
