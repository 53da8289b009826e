"""Faults that a fake port is told to have, and the record of the calls made on it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidArgumentError
from ..ids import MessageId

CallName = Literal["receive", "acknowledge", "acknowledge_cumulative", "redeliver", "seek", "close"]
_CAN_FAIL = ("receive", "acknowledge", "acknowledge_cumulative", "redeliver", "seek")


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call that was made on a fake port, at ``at_ms`` of the loop's time; a receive names what it returned."""

    name: CallName
    ids: tuple[MessageId, ...]
    at_ms: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call: a delay first, then an error, before or after the call took effect.

    Or it is accepted and lost on its way: no error and no effect.
    """

    delay: float = 0.0
    error: BaseException | None = None
    is_carried_out: bool = False
    is_lost: bool = False


NO_FAULT = Fault()


class Faults:
    """Faults to come, in order, for each kind of call."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Fault]] = {name: deque() for name in _CAN_FAIL}

    def add(self, name: str, fault: Fault, times: int) -> None:
        """Let the next ``times`` calls that have no fault yet have this one."""
        if name not in _CAN_FAIL:
            raise InvalidArgumentError("call", name, f"one of {', '.join(_CAN_FAIL)}")
        if type(times) is not int or times < 1:
            raise InvalidArgumentError("times", times, "an integer of at least 1")
        self._waiting[name].extend([fault] * times)

    def take(self, name: str) -> Fault:
        """Return the fault of the call that begins now."""
        waiting = self._waiting.get(name)
        return waiting.popleft() if waiting else NO_FAULT


def seconds(field: str, value: object) -> float:
    """Return seconds of at least 0 as a float, or raise :class:`~pulsar_nack.InvalidArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidArgumentError(field, value, "seconds as a finite number of at least 0")
    return float(value)
