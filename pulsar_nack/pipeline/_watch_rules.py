"""When a nacked message counts as overdue: the rules of ``watch``, pure, for one message at a time.

::

                 nack                     deadline        due = deadline + bound
    -------------|------------------------|---------------|-----------------------> time of the events
      nothing    |  pending               it should be back        it is overdue

A message is pending from its nack on until it is back, settled, or its alert was raised. It is back when a redelivery
was asked for, or when it arrived, as wanted. What happens later than ``due`` comes too late: the alert is raised
whether time or that event is seen first. So each nack raises one alert or none, and how the events are cut into batches
does not matter, as long as none of them comes later than is waited for.

An alert is *late* where it is known when the message came back, else *missing*.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

LATE: Final = "late"
MISSING: Final = "missing"
_SETTLES: Final = {"ack", "cancel"}
_EXPLAINS: Final = {"hold", "error"}
_RANK: Final = {"redeliver": 0, "arrive": 1, "hold": 2, "error": 2, "cancel": 3, "ack": 3, "nack": 4}
"""The order of events of the same time: a message that comes back can be nacked again at once."""


class Pending(NamedTuple):
    """A nack whose message is not back yet."""

    nacked_ms: int
    deadline_ms: int
    delay_ms: int | None
    attempt: int | None
    consumer: str | None
    reason: str | None


class Event(NamedTuple):
    """What a line of the trace says of the message, as far as the rules ask for it."""

    event: str
    time_ms: int
    mono_ns: int | None = None
    consumer: str | None = None
    attempt: int | None = None
    delay_ms: int | None = None
    deadline_ms: int | None = None
    actual_ms: int | None = None
    reason: str | None = None


class Alert(NamedTuple):
    """A message that was not back in time; ``actual_ms``: when it was back, None where that was not seen."""

    kind: str
    pending: Pending
    actual_ms: int | None


class Rules(NamedTuple):
    """What counts as back, and by how much it may be late.

    :param bound_ms: how long after its deadline a message may be back
    :param until: ``redeliver``: back when it was asked for; ``arrive``: back when it arrived
    """

    bound_ms: int
    until: str = "redeliver"

    def due_ms(self, pending: Pending) -> int:
        """Return until when a message has to be back."""
        return pending.deadline_ms + self.bound_ms

    def follow(self, pending: Pending | None, events: Iterable[Event]) -> tuple[Pending | None, list[Alert]]:
        """Return what is pending after events of one message, in any order, and the alerts that they raise."""
        alerts: list[Alert] = []
        for event in sorted(events, key=_order):
            pending = self._next(pending, event, alerts)
        return pending, alerts

    def expire(self, pending: Pending | None, now_ms: int) -> Alert | None:
        """Return the alert that is to be raised as time has come to ``now_ms``: nothing earlier is to be expected."""
        return Alert(MISSING, pending, None) if pending is not None and self.due_ms(pending) <= now_ms else None

    def _next(self, pending: Pending | None, event: Event, alerts: list[Alert]) -> Pending | None:
        if event.event == "nack":
            return self._nacked(pending, event, alerts)
        if pending is None or event.time_ms < pending.nacked_ms:
            return pending
        if event.event in _SETTLES:
            if event.time_ms > self.due_ms(pending):
                alerts.append(Alert(MISSING, pending, None))
            return None
        if event.event in {"arrive", self.until}:
            if event.time_ms > self.due_ms(pending):
                actual_ms = event.time_ms if event.actual_ms is None else event.actual_ms
                alerts.append(Alert(LATE, pending, actual_ms))
            return None
        return pending._replace(reason=event.reason) if event.event in _EXPLAINS and event.reason else pending

    def _nacked(self, pending: Pending | None, event: Event, alerts: list[Alert]) -> Pending | None:
        """Begin anew, but for a second nack of the same delivery: of these the earliest deadline counts."""
        if event.deadline_ms is None:
            return pending
        new = Pending(event.time_ms, event.deadline_ms, event.delay_ms, event.attempt, event.consumer, event.reason)
        if pending is None:
            return new
        if event.time_ms > self.due_ms(pending):
            alerts.append(Alert(MISSING, pending, None))
            return new
        if (event.attempt or 0) > (pending.attempt or 0):
            return new
        return min(pending, new, key=lambda each: each.deadline_ms)


def _order(event: Event) -> tuple[int, int, int]:
    return event.time_ms, _RANK.get(event.event, 2), event.mono_ns or 0
