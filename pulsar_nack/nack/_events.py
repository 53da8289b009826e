"""What the tracker tells its hooks: frozen records, one signature for every hook.

Times are ms of the tracker's clock, delays ms. A hook is any callable that takes one event; it runs outside every
lock and must not block. What it raises is counted (``statistics().hook_errors``) and never reaches the tracker's users.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .._check import check_list
from ..errors import InvalidArgumentError
from ..ids import MessageId


@dataclass(frozen=True, slots=True)
class Nacked:
    """Ids became pending, or were nacked again (``is_new`` False: the earliest deadline wins).

    ``ids`` may be made lazily; ``deadline_ms`` is the exact one, before it is rounded down to a bucket.
    """

    ids: Sequence[MessageId]
    at_ms: int
    delay_ms: int
    deadline_ms: int
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Redelivered:
    """The callback took these ids; ``attempt`` is 1 unless it had failed for them before."""

    ids: Sequence[MessageId]
    at_ms: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class RedeliveryFailed:
    """The callback raised; the ids stay pending and are tried again at ``retry_at_ms``."""

    ids: Sequence[MessageId]
    at_ms: int
    attempt: int
    error: BaseException
    retry_at_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An acknowledgement took a pending id out."""

    id: MessageId
    at_ms: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """All pending ids were dropped, ``count`` of them."""

    count: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The tracker was closed while ``pending`` ids waited."""

    pending: int
    at_ms: int


NackEvent = Nacked | Redelivered | RedeliveryFailed | Cancelled | Cleared | Closed


class NackHook(Protocol):
    """Receives every event of a tracker."""

    def __call__(self, event: NackEvent, /) -> None:
        """Take one event."""
        ...


HookLike = Callable[[NackEvent], None]


class Hooks:
    """Calls hooks in turn; counts what they raise."""

    __slots__ = ("_hooks", "errors")

    def __init__(self, hooks: Sequence[HookLike]) -> None:
        check_list("hooks", hooks, "a list of callables that take one event")
        self._hooks = tuple(hooks)
        for index, hook in enumerate(self._hooks):
            if not callable(hook):
                raise InvalidArgumentError(f"hooks[{index}]", hook, "a callable that takes one event")
        self.errors = 0

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def emit(self, event: NackEvent) -> None:
        """Tell every hook; one that raises does not keep the others from hearing of it.

        A hook is no coroutine: if it raises ``CancelledError``, that is of something that it looked at.
        """
        for hook in self._hooks:
            try:
                hook(event)
            except (Exception, CancelledError):  # noqa: BLE001 - a hook's fault is counted, never its tracker's user's
                self.errors += 1
