"""Backoff strategies: pure functions of the redelivery count."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import Backoff, Exponential, Fixed, InvalidArgumentError, Multiplier, Steps
from pulsar_nack.backoff import as_backoff
from tests.for_each import for_each


def in_ms(backoff: Backoff, *counts: int) -> list[int]:
    """Return the delays for these counts in ms."""
    delays = [backoff(count) for count in counts]
    return [round((delay.total_seconds() if isinstance(delay, timedelta) else delay) * 1000) for delay in delays]


def test_multiplier_doubles() -> None:
    """N25: from 1 s to 600 s, doubling; a negative count counts as 0."""
    assert in_ms(Multiplier(1, 600), -1, 0, 1, 4, 100) == [1000, 1000, 2000, 16_000, 600_000]


def test_multiplier_by_five() -> None:
    """N26: from 2 s to 6000 s, times 5."""
    backoff = Multiplier(2, 6000, 5)
    assert in_ms(backoff, -1, 0, 1, 2, 4, 100) == [2000, 2000, 10_000, 50_000, 1_250_000, 6_000_000]


def test_multiplier_defaults() -> None:
    """N27: by default 10 s, doubling, at most 10 min."""
    assert [Multiplier()(count) for count in range(7)] == [10, 20, 40, 80, 160, 320, 600]


def test_multiplier_reaches_its_maximum() -> None:
    """N28: from 100 ms to 1 s; delays may be timedeltas."""
    backoff = Multiplier(timedelta(milliseconds=100), timedelta(seconds=1))
    assert in_ms(backoff, *range(5)) == [100, 200, 400, 800, 1000]


@for_each("count", [34, 54, 255, 65_535, 2**32 - 1, 10**400])
@for_each("multiplier", [2, 5, 1e300, 1.5])
def test_multiplier_never_overflows(count: int, multiplier: float) -> None:
    """N29: with huge counts 0 for a minimum of 0, else the maximum."""
    assert Multiplier(0, 600, multiplier)(count) == 0
    assert Multiplier(0.001, 600, multiplier)(count) == 600


@for_each("count", [34, 54, 255, 65_535, 2**32 - 1, 10**400])
def test_exponential_never_overflows(count: int) -> None:
    """N29: with huge counts 0 for a base of 0, else the maximum, less at most half of it for the jitter."""
    assert Exponential(0, 600)(count) == 0
    assert Exponential(0.001, 600, jitter=False)(count) == 600
    assert 300 <= Exponential(0.001, 600)(count) <= 600


def test_multiplier_of_one() -> None:
    """A multiplier of 1 stays at the minimum, whatever the count."""
    assert {Multiplier(2, 600, 1)(count) for count in (0, 1, 2**32 - 1, 10**400)} == {2.0}


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e9) | st.just(1.7e308), st.integers(-(2**63), 2**64)
)  # fmt: skip
def test_multiplier_stays_in_bounds(one: float, other: float, multiplier: float, count: int) -> None:
    """N29: for any setting and count the delay is finite and between minimum and maximum, and grows with the count."""
    minimum, maximum = sorted((one, other))
    backoff = Multiplier(minimum, maximum, multiplier)
    assert minimum <= backoff(count) <= maximum
    assert backoff(count) <= backoff(count + 1)


def test_fixed() -> None:
    """Every count gives the same delay."""
    assert in_ms(Fixed(2.5), -1, 0, 1, 100) == [2500] * 4
    assert in_ms(Fixed(timedelta(minutes=1)), 3) == [60_000]


def test_steps() -> None:
    """N31: 0.2, 0.5, 1, and 1 s from then on; a negative count counts as 0."""
    assert [Steps([0.2, 0.5, 1])(count) for count in (-1, 0, 1, 2, 3, 10**400)] == [0.2, 0.2, 0.5, 1, 1, 1]


def test_exponential_without_jitter() -> None:
    """Without jitter, by name or by place, it doubles up to its maximum."""
    settings: tuple[float, float, bool] = (0.1, 1, False)
    for backoff in (Exponential(0.1, 1, jitter=False), Exponential(*settings)):
        assert in_ms(backoff, *range(5)) == [100, 200, 400, 800, 1000]


@for_each(("drawn", "delay"), [(0.0, 2.0), (0.5, 3.0), (1.0, 4.0)])
def test_exponential_jitter(drawn: float, delay: float) -> None:
    """With jitter the delay lies between half of the plain one and all of it."""
    assert Exponential(1, 60, random=lambda: drawn)(2) == delay


def test_exponential_draws_each_delay() -> None:
    """By default jitter is on, and two delays differ."""
    backoff = Exponential(1, 60)
    delays = {backoff(3) for _ in range(50)}
    assert len(delays) > 1
    assert all(4 <= delay <= 8 for delay in delays)


def test_as_backoff() -> None:
    """A callable is returned as it is, a delay becomes Fixed, any sequence of delays Steps."""

    def own(count: int) -> float:
        return count / 10

    assert as_backoff(own) is own
    for delay in (3, timedelta(seconds=3)):
        assert in_ms(as_backoff(delay), 7) == [3000]
    sequences: list[Any] = [[1, 2], (1, timedelta(seconds=2)), range(1, 3), deque([1, 2]), array("d", [1, 2])]
    for delays in sequences:
        assert in_ms(as_backoff(delays), 0, 1, 2) == [1000, 2000, 2000]


NO_BACKOFFS: list[Any] = [
    *[True, None, "12", b"12", bytearray(b"12"), {1.0}, Decimal(1), -1],
    *[[], range(0), deque[float](), [1, -1], (-1,)],
]


@for_each("wrong", NO_BACKOFFS)
def test_what_is_no_backoff(wrong: Any) -> None:
    """Text, bytes, no delay at all, and values that are no delays are refused by name, with the place in a list."""
    with pytest.raises(InvalidArgumentError) as caught:
        as_backoff(wrong)
    place = {"[1, -1]": "[1]", "(-1,)": "[0]"}.get(repr(wrong), "")
    assert caught.value.field == f"backoff{place}"


WRONG_DELAYS: list[Any] = [-1, math.nan, math.inf, True, "1", None, Decimal(1), timedelta(seconds=-1), 10**400]


@for_each("wrong", WRONG_DELAYS)
def test_wrong_delays(wrong: Any) -> None:
    """N24: each strategy refuses a wrong delay and names the argument."""
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: Fixed(wrong), "delay"),
        (lambda: Multiplier(wrong), "minimum"),
        (lambda: Multiplier(1, wrong), "maximum"),
        (lambda: Exponential(wrong, 1), "base"),
        (lambda: Exponential(1, wrong), "maximum"),
        (lambda: Steps([1, wrong]), r"delays\[1\]"),
    ]
    for make, field in cases:
        with pytest.raises(InvalidArgumentError, match=f"^{field}: expected"):
            make()


@for_each("wrong", [0.9, -2, math.nan, math.inf, True, "2", None, 10**400])
def test_wrong_multiplier(wrong: Any) -> None:
    """A multiplier must be a finite number of at least 1."""
    with pytest.raises(InvalidArgumentError, match=r"^multiplier:"):
        Multiplier(1, 2, wrong)


def test_wrong_combinations() -> None:
    """A maximum below the minimum, no steps at all, a jitter that is no bool."""
    wrong: Any = "no"
    with pytest.raises(InvalidArgumentError, match=r"^maximum: expected at least the minimum"):
        Multiplier(2, 1)
    with pytest.raises(InvalidArgumentError, match=r"^maximum: expected at least the base"):
        Exponential(2, 1)
    with pytest.raises(InvalidArgumentError, match=r"^delays:"):
        Steps([])
    with pytest.raises(InvalidArgumentError, match=r"^jitter:"):
        Exponential(1, 2, jitter=wrong)


@for_each("backoff", [Fixed(1), Multiplier(1, 2), Exponential(1, 2), Steps([1, 2])])
def test_repr_evaluates_to_the_same(backoff: object) -> None:
    """The repr shows the settings and can be evaluated."""
    assert repr(eval(repr(backoff))) == repr(backoff)
