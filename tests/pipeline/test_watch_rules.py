"""When a nacked message counts as overdue; no Spark session is needed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.pipeline._watch import Alert, Event, OverdueRules, Pending
from tests.tiers import examples

RULES = OverdueRules(bound_ms=100)
NACK = Event("nack", 1_000, consumer="c", attempt=0, delay_ms=500, deadline_ms=1_500, reason="busy")
PENDING = Pending(1_000, 1_500, 500, 0, "c", "busy")


def alerts_of(*events: Event, rules: OverdueRules = RULES) -> list[Alert]:
    """Return the alerts that events raise, and then an endless time."""
    pending, alerts = rules.follow(None, events)
    last = rules.expire(pending, 10**15)
    return alerts if last is None else [*alerts, last]


def test_a_nack_waits() -> None:
    """A nack makes a message pending, with all that its alert will contain."""
    assert RULES.follow(None, [NACK]) == (PENDING, [])


@pytest.mark.parametrize(("now_ms", "is_raised"), [(1_599, False), (1_600, True), (1_601, True)])
def test_time_raises_an_alert(now_ms: int, is_raised: bool) -> None:
    """The alert is raised at the deadline plus the limit, and not a ms earlier."""
    assert RULES.expire(PENDING, now_ms) == ((PENDING, None) if is_raised else None)
    assert RULES.expire(None, now_ms) is None


@pytest.mark.parametrize("event", ["redeliver", "arrive"])
@pytest.mark.parametrize(("actual_ms", "expected"), [(1_600, []), (1_601, [(PENDING, 1_601)])])
def test_what_comes_back(event: str, actual_ms: int, expected: list[Alert]) -> None:
    """A message that is back in time raises nothing, a later one is late, once."""
    back = Event(event, actual_ms, actual_ms=actual_ms)
    assert alerts_of(NACK, back, back) == expected


def test_until_it_arrives() -> None:
    """If arrivals count, a request for redelivery is not enough."""
    asked = Event("redeliver", 1_500, actual_ms=1_500)
    rules = OverdueRules(100, "arrive")
    assert alerts_of(NACK, asked) == []
    assert alerts_of(NACK, asked, rules=rules) == [(PENDING, None)]
    assert alerts_of(NACK, asked, Event("arrive", 1_590, actual_ms=1_590), rules=rules) == []


@pytest.mark.parametrize("event", ["ack", "cancel"])
def test_what_is_settled(event: str) -> None:
    """A message that is settled in time need not come back; if it is settled later, it was missing until then."""
    assert alerts_of(NACK, Event(event, 1_600)) == []
    assert alerts_of(NACK, Event(event, 1_601)) == [(PENDING, None)]


def test_what_held_it() -> None:
    """An alert has the reason of the last hold or error."""
    found = alerts_of(NACK, Event("hold", 1_500, reason="paused"), Event("error", 1_550, reason="no connection"))
    assert found == [(PENDING._replace(reason="no connection"), None)]


def test_chains() -> None:
    """Each nack of a chain is judged separately, also if two events have the same time."""
    again = Event("nack", 1_550, attempt=1, delay_ms=500, deadline_ms=2_050)
    back = Event("arrive", 1_550, attempt=1, actual_ms=1_550)
    assert alerts_of(again, back, NACK) == [(Pending(1_550, 2_050, 500, 1, None, None), None)]


def test_nacked_twice() -> None:
    """Of two nacks of one delivery the earliest deadline counts; one after the first was due is another."""
    later = NACK._replace(time_ms=1_100, deadline_ms=9_000)
    assert alerts_of(NACK, later) == [(PENDING, None)]
    earlier = NACK._replace(time_ms=1_100, deadline_ms=1_200)
    assert [nack.deadline_ms for nack, _ in alerts_of(NACK, earlier)] == [1_200]
    after = NACK._replace(time_ms=1_601, deadline_ms=9_000)
    assert [nack.deadline_ms for nack, _ in alerts_of(NACK, after)] == [1_500, 9_000]


def test_nacked_again_by_another_consumer() -> None:
    """A nack of a later delivery shows that the message came back before."""
    other = NACK._replace(time_ms=1_580, attempt=1, deadline_ms=3_000, consumer="d")
    assert [nack.consumer for nack, _ in alerts_of(NACK, other)] == ["d"]
    too_late = other._replace(time_ms=1_601)
    assert [nack.consumer for nack, _ in alerts_of(NACK, too_late)] == ["c", "d"]


def test_what_came_before() -> None:
    """Events from before the nack do not end it, and events without a nack raise nothing."""
    assert alerts_of(Event("arrive", 999, actual_ms=999), NACK) == [(PENDING, None)]
    assert alerts_of(Event("arrive", 5), Event("ack", 6), Event("hold", 7, reason="x"), Event("odd", 8)) == []
    assert alerts_of(Event("nack", 5)) == []


EVENTS = st.builds(
    Event,
    st.sampled_from(["nack", "redeliver", "arrive", "ack", "cancel", "hold", "error"]),
    st.integers(0, 60),
    attempt=st.integers(0, 2),
    deadline_ms=st.integers(0, 60),
)


@examples(200)
@given(st.lists(EVENTS, max_size=12, unique_by=lambda each: each.time_ms), st.randoms())
def test_batches_do_not_matter(events: list[Event], rnd: random.Random) -> None:
    """However the events are cut into batches, with time running up to each cut, the same nacks raise alerts."""
    rules = OverdueRules(5)
    events = sorted(events, key=lambda each: each.time_ms)
    whole = [nack.nacked_ms for nack, _ in alerts_of(*events, rules=rules)]
    found, pending, at = [], None, 0
    while at < len(events):
        size = rnd.randint(1, 4)
        batch = events[at : at + size]
        at += size
        pending, alerts = rules.follow(pending, rnd.sample(batch, len(batch)))
        found += [nack.nacked_ms for nack, _ in alerts]
        expired = rules.expire(pending, batch[-1].time_ms)
        if expired is not None:
            found.append(expired[0].nacked_ms)
            pending = None
    if pending is not None:
        found.append(pending.nacked_ms)
    assert found == whole
