"""Acknowledgements on their way: gathered for a moment, sent as one command, done when the broker's receipt is here.

While no command is unanswered a group is sent in the loop's next turn, so that a lone acknowledgement takes one round
trip. While some are, a group is sent with the receipt of the last of them, when it is full, or when it is old enough;
so the more there is to acknowledge the larger groups are, by themselves.

A group stays here until its receipt has come. One whose connection broke is sent again on the next, and may reach the
broker twice, which does no harm. Each call hears of the outcome once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast

from ...consumer import AcksDone
from ...errors import ConnectionLostError
from .. import _pulsar_pb2 as pb

T = TypeVar("T")
Done = Callable[[Exception | None], None]
"""Called with None, or with why it failed, in a later turn of the loop."""

MOST_ENTRIES: Final = 1_000
"""In one command."""


class AckSender(Protocol):
    """Sends acknowledgements over a connection that is open now."""

    def send_acks(self, group: AckGroup) -> asyncio.Future[pb.BaseCommand] | None:
        """Send a group; return what will hold the receipt, None: this broker gives none.

        :raises ConnectionLostError: the connection is closed
        """
        ...


class AckGroup:
    """What one command acknowledges.

    ``entries`` is what remains of each entry, 0: nothing; with ``is_cumulative`` there is one, and all before it.
    """

    __slots__ = ("all_done", "entries", "is_cumulative", "receipt", "tokens", "waiting")

    def __init__(self, *, is_cumulative: bool = False) -> None:
        self.entries: dict[tuple[int, int], int] = {}
        self.is_cumulative = is_cumulative
        self.tokens: list[Any] = []
        self.all_done: AcksDone[Any] | None = None
        """Is told of all ``tokens`` together."""
        self.waiting: list[Done] = []
        self.receipt: asyncio.Future[pb.BaseCommand] | None = None

    def finish(self, error: Exception | None) -> None:
        """Tell all who wait for it."""
        tokens, self.tokens, waiting, self.waiting = self.tokens, [], self.waiting, []
        if self.all_done is not None:
            self.all_done(tokens, error)
        for done in waiting:
            done(error)


class AckGroups:
    """Those of one consumer, through all its connections.

    :param group_ms: most that an acknowledgement waits for others while some are unanswered
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, group_ms: int) -> None:
        self._loop = loop
        self._group_s = group_ms / 1000
        self._sender: AckSender | None = None
        self._open: AckGroup | None = None
        self._unanswered: dict[AckGroup, None] = {}
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        """Return how many entries are not confirmed."""
        groups = [*self._unanswered, *([self._open] if self._open is not None else [])]
        return sum(len(group.entries) for group in groups)

    def add(self, position: tuple[int, int], remaining: int, token: T, done: AcksDone[T]) -> None:
        """Acknowledge an entry but for what remains of it; ``done`` gets the token, and those of others with it."""
        group = self._open or self._gathering()
        entries = group.entries
        entries[position] = remaining and remaining & entries.get(position, remaining)
        if group.all_done is done:
            group.tokens.append(token)
        elif group.all_done is None:
            group.all_done = done
            group.tokens.append(token)
        else:
            group.waiting.append(lambda error: done([token], error))
        if len(entries) >= MOST_ENTRIES:
            self.flush()

    def add_all(self, entries: dict[tuple[int, int], int], done: Done) -> None:
        """Acknowledge several entries together; ``done`` is called once, when all are."""
        group: AckGroup | None = None
        ends: list[AckGroup] = []
        for position, remaining in entries.items():
            group = self._gathering()
            known = group.entries.get(position)
            group.entries[position] = remaining if known is None else remaining & known
            if not ends or ends[-1] is not group:
                ends.append(group)
            if len(group.entries) >= MOST_ENTRIES:
                self.flush()
        join = _joined(len(ends), done)
        for group in ends:
            group.waiting.append(join)

    def add_cumulative(self, position: tuple[int, int], remaining: int, done: Done) -> None:
        """Acknowledge everything before an entry, and the entry but for what remains of it."""
        self.flush()
        group = AckGroup(is_cumulative=True)
        group.entries[position] = remaining
        group.waiting.append(done)
        self._dispatch(group)

    def flush(self) -> None:
        """Send what was gathered now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group, self._open = self._open, None
        if group is not None:
            self._dispatch(group)

    def connected(self, sender: AckSender) -> None:
        """Send from now on, first what is unanswered."""
        self._sender = sender
        for group in list(self._unanswered):
            self._send(group)
        self.flush()

    def disconnected(self) -> None:
        """Keep everything for the next connection, but for what was answered: that is not to be sent once more."""
        self._sender = None
        for group in list(self._unanswered):
            receipt = group.receipt
            if receipt is not None and receipt.done():  # its callback would come too late
                self._on_receipt(group, receipt)
            group.receipt = None
            if receipt is not None:
                receipt.cancel()

    def fail(self, error: Exception | None) -> None:
        """Give up all that is not confirmed; None: there is nothing to acknowledge any more, and it counts as done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.disconnected()
        groups = [*self._unanswered, *([self._open] if self._open is not None else [])]
        self._unanswered.clear()
        self._open = None
        for group in groups:
            group.finish(error)

    async def settled(self) -> None:
        """Send what was gathered, and wait until none of it is unanswered; new ones are not waited for."""
        self.flush()
        groups = list(self._unanswered)
        if not groups:
            return
        all_settled: asyncio.Future[None] = self._loop.create_future()
        join = _joined(len(groups), lambda _: None if all_settled.done() else all_settled.set_result(None))
        for group in groups:
            group.waiting.append(join)
        await all_settled

    def _gathering(self) -> AckGroup:
        group = self._open
        if group is None:
            group = self._open = AckGroup()
            if not self._unanswered or not self._group_s:
                self._timer = self._loop.call_soon(self.flush)
            else:
                self._timer = self._loop.call_later(self._group_s, self.flush)
        return group

    def _dispatch(self, group: AckGroup) -> None:
        self._unanswered[group] = None
        self._send(group)

    def _send(self, group: AckGroup) -> None:
        if self._sender is None:
            return
        try:
            receipt = self._sender.send_acks(group)
        except ConnectionLostError:  # told in a moment; sent again on the next one
            return
        if receipt is None:
            self._loop.call_soon(self._answered, group, None)
            return
        group.receipt = receipt
        receipt.add_done_callback(lambda receipt: self._on_receipt(group, receipt))

    def _on_receipt(self, group: AckGroup, receipt: asyncio.Future[pb.BaseCommand]) -> None:
        if receipt.cancelled() or group.receipt is not receipt:
            return
        error = receipt.exception()
        group.receipt = None
        if not isinstance(error, ConnectionLostError):  # then it is sent again on the next one
            self._answered(group, cast("Exception | None", error))

    def _answered(self, group: AckGroup, error: Exception | None) -> None:
        if self._unanswered.pop(group, self) is self:
            return
        group.finish(error)
        if not self._unanswered and self._open is not None:
            self.flush()


def _joined(parts: int, done: Done) -> Done:
    """Return what calls ``done`` once it was called for all parts, with the first error."""
    left = parts
    first: Exception | None = None

    def one(error: Exception | None) -> None:
        nonlocal left, first
        left -= 1
        first = first or error
        if not left:
            done(first)

    return one
