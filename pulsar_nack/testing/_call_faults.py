"""Faults of a port's calls that a test orders, a record of all calls, and checks of arguments."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from .._check import check_integer
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId

CallName = Literal["receive", "acknowledge", "acknowledge_cumulative", "redeliver", "seek", "close"]
_CAN_FAIL: Final = ("receive", "acknowledge", "acknowledge_cumulative", "redeliver", "seek")


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call on a fake port, at ``at_ms`` of the loop's time; a receive has the id that it returned."""

    name: CallName
    ids: tuple[MessageId, ...]
    at_ms: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one call: a delay first, then an error, before or after the call took effect.

    A lost call is accepted and dropped: no error and no effect.
    """

    delay: float = 0.0
    error: BaseException | None = None
    is_carried_out: bool = False
    is_lost: bool = False


NO_FAULT: Final = Fault()


class PortWithFaults:
    """Base class of ports whose calls fail, are delayed or are lost when a test orders it."""

    _yields_always: ClassVar[bool] = False
    """Whether each call but receive lets other tasks run first."""

    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        """Every call, in the order in which the calls ended."""
        self._coming_faults: dict[str, deque[Fault]] = {name: deque() for name in _CAN_FAIL}
        self._duplicates: deque[int | None] = deque()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether :meth:`close` was called."""
        return self._is_closed

    def requests(self, name: CallName) -> list[tuple[MessageId, ...]]:
        """Return the ids of each call of one kind that succeeded."""
        return [call.ids for call in self.calls if call.name == name and call.error is None]

    def fail_next(
        self, call: CallName, times: int = 1, *, error: BaseException | None = None, carried_out: bool = False
    ) -> None:
        """Let the next calls of one kind raise, any but ``close``; a failed receive loses no message.

        :param error: what they raise, by default a :class:`~pulsar_nack.BrokerError`
        :param carried_out: they take effect, and only the answer is lost
        """
        if carried_out and call == "receive":
            raise InvalidArgumentError("carried_out", carried_out, "False for receive: it would lose a message")
        failure = error or BrokerError(f"{call} failed, as the test asked")
        self._add_fault(call, Fault(error=failure, is_carried_out=carried_out), times)

    def lose_next(self, call: Literal["acknowledge", "redeliver"], times: int = 1) -> None:
        """Let the next calls of one kind be accepted, and lost: clients drop what they could not send yet."""
        if call not in {"acknowledge", "redeliver"}:
            raise InvalidArgumentError("call", call, "acknowledge or redeliver")
        self._add_fault(call, Fault(is_lost=True), times)

    def delay_next(self, call: CallName, delay: float, times: int = 1) -> None:
        """Let the next calls of one kind begin only after ``delay`` seconds."""
        self._add_fault(call, Fault(delay=seconds("delay", delay)), times)

    def duplicate_next(self, times: int = 1, *, second_count: int | None = None) -> None:
        """Let the next entries that this port has redelivered arrive twice, as busy brokers send them.

        :param second_count: redelivery count of the second copy, as 0; None: the same as the first's
        """
        self._duplicates.extend([second_count] * check_integer("times", times, 1))

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Raise, because this port cannot delete its subscription.

        :raises NotImplementedError: always
        """
        del force
        raise NotImplementedError(f"{type(self).__name__} cannot unsubscribe")

    def _add_fault(self, call: str, fault: Fault, times: int) -> None:
        """Give this fault to the next ``times`` calls that have none yet."""
        if call not in _CAN_FAIL:
            raise InvalidArgumentError("call", call, f"one of {', '.join(_CAN_FAIL)}")
        self._coming_faults[call].extend([fault] * check_integer("times", times, 1))

    async def _begin(self, name: CallName, ids: tuple[MessageId, ...]) -> Fault:
        self._check_open()
        coming = self._coming_faults.get(name)
        fault = coming.popleft() if coming else NO_FAULT
        if fault.delay or (self._yields_always and name != "receive"):
            await asyncio.sleep(fault.delay)
            self._check_open()
        if fault.error is not None and not fault.is_carried_out:
            self._end(name, ids, fault)
        return fault

    def _end(self, name: CallName, ids: tuple[MessageId, ...], fault: Fault = NO_FAULT) -> None:
        self.calls.append(FakeCall(name, ids, loop_ms(), fault.error))
        if fault.error is not None:
            raise fault.error

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the port")


def seconds(field: str, value: object) -> float:
    """Return seconds of at least 0 as a float, or raise :class:`~pulsar_nack.InvalidArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise InvalidArgumentError(field, value, "seconds as a finite number of at least 0")
    return float(value)


def loop_ms() -> int:
    """Return the running loop's time in ms, 0 outside of a loop."""
    try:
        return int(asyncio.get_running_loop().time() * 1000 + 1e-6)
    except RuntimeError:
        return 0
