"""The rules of ``watch``: when a nacked message is overdue. Pure, for one message at a time.

::

                 nack                     deadline        due = deadline + bound
    -------------|------------------------|---------------|-----------------------> time of the events
      nothing    |  pending               it should be back        it is overdue

A message is pending from its nack until it is back or settled, or its alert is raised. Depending on the rules it is
back when its redelivery is requested, or when it arrives. An event after ``due`` is too late: the alert is raised
whether the time or that event is seen first. So each nack raises at most one alert, however events are cut into
batches, as long as no event comes later than the allowed lateness.

An alert is *late* if it is known when the message came back, else *missing*.
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
    """The fields of a trace event that the rules use."""

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
    """A message that was not back in time; ``actual_ms``: when it came back, None if that was not seen."""

    kind: str
    pending: Pending
    actual_ms: int | None


class OverdueRules(NamedTuple):
    """The rules for messages that are overdue.

    :param bound_ms: how long after its deadline a message becomes overdue
    :param until: a message is back when its redelivery is requested (``redeliver``) or when it arrives (``arrive``)
    """

    bound_ms: int
    until: str = "redeliver"

    def due_ms(self, pending: Pending) -> int:
        """Return the time by which a message has to be back."""
        return pending.deadline_ms + self.bound_ms

    def follow(self, pending: Pending | None, events: Iterable[Event]) -> tuple[Pending | None, list[Alert]]:
        """Return the pending nack after events of a message, given in any order, and the alerts that they raise."""
        alerts: list[Alert] = []
        for event in sorted(events, key=_order):
            pending = self._next(pending, event, alerts)
        return pending, alerts

    def expire(self, pending: Pending | None, now_ms: int) -> Alert | None:
        """Return the alert to raise if the message is overdue at ``now_ms`` and no earlier event will come."""
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
        """Return the new nack; of two nacks of the same delivery that with the earlier deadline."""
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
