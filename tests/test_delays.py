"""Delays: seconds or timedeltas in, whole milliseconds out."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import Consumer, InvalidArgumentError, MessageId, NackConfig
from pulsar_nack._delays import MAX_DELAY_MS, delay_ms, delay_seconds, seek_position
from pulsar_nack.testing import FakePort, virtual_time
from tests.for_each import for_each


class Wait(enum.IntEnum):
    """Delays of an application."""

    SHORT = 2
    ENDLESS = 10**400


class Seconds(float):
    """A float subclass, as numpy has."""


@for_each(
    ("delay", "expected"),
    [
        (0, 0),
        (-0.0, 0),
        (1, 1000),
        (2.5, 2500),
        (0.0004, 1),
        (0.0015, 2),
        (0.0010001, 2),
        (0.0006, 1),
        (0.1 + 0.2, 300),
        (timedelta(0), 0),
        (timedelta(days=2, milliseconds=5), 172_800_005),
        (timedelta(microseconds=600), 1),
        (Wait.SHORT, 2000),
        (Seconds(1.5), 1500),
        (5e-324, 1),
        (366 * 86_400, 31_622_400_000),
        (timedelta(days=366), 31_622_400_000),
    ],
)
def test_good_delays(delay: Any, expected: int) -> None:
    """Numbers are seconds; the result is an int, rounded up to a ms, but without a float's rounding error."""
    assert delay_ms(delay) == expected
    assert type(delay_ms(delay)) is int
    assert type(delay_seconds(delay)) is float
    assert delay_seconds(delay) == pytest.approx(expected / 1000, abs=0.001)


def test_delays_of_numpy() -> None:
    """numpy's float64 is accepted in calls, in settings and from a backoff; its other types are refused by field."""
    numpy = pytest.importorskip("numpy")
    found = delay_ms(numpy.float64(0.25))
    assert (found, type(found)) == (250, int)
    assert type(delay_seconds(numpy.float64(0.25))) is float
    assert NackConfig(close_timeout=numpy.float64(2)).close_timeout == timedelta(seconds=2)
    for wrong in (numpy.float32(1), numpy.int64(1)):
        with pytest.raises(InvalidArgumentError, match=r"^my_delay: expected seconds"):
            delay_ms(wrong, "my_delay")


@virtual_time
async def test_nacks_with_delays_of_numpy() -> None:
    """A nack with such a delay, or with a backoff that returns one, is redelivered at its deadline."""
    numpy = pytest.importorskip("numpy")
    for backoff, delay in ((None, numpy.float64(0.25)), (numpy.exp2, None)):
        port = FakePort()
        port.topic.publish(b"x")
        async with Consumer(port, backoff=backoff) as consumer:
            await (await consumer.receive()).nack(delay)
            assert (await consumer.receive(timeout=2)).data == b"x"


WRONG: list[Any] = [
    math.nan, math.inf, -math.inf, -1, -1e-9, True, False, "1", b"1", None, [], 1 + 0j, Decimal(1), Fraction(1, 2),
    10**400, -(10**400), 10**5000, Wait.ENDLESS, timedelta(microseconds=-1), timedelta.min, timedelta.max, 1e300,
    MAX_DELAY_MS // 1000 + 1, Seconds("nan"), object(),
]  # fmt: skip


@for_each("wrong", WRONG)
def test_wrong_delays(wrong: object) -> None:
    """N24: NaN, infinite, negative, huge, a bool, a str, a Decimal: the error names the field and keeps the value."""
    for convert in (delay_ms, delay_seconds):
        with pytest.raises(InvalidArgumentError) as caught:
            convert(wrong, "my_delay")
        assert caught.value.field == "my_delay"
        assert caught.value.value is wrong
        assert str(caught.value).startswith("my_delay: expected seconds")
        assert len(str(caught.value)) < 400


@for_each("wrong", [31_622_401, 60_000_000, 31_622_400.1, Seconds(86_400_000), MAX_DELAY_MS])
def test_milliseconds_taken_for_seconds(wrong: float) -> None:
    """More than a year as a number is most likely meant as ms, and refused; a timedelta may be longer."""
    for convert in (delay_ms, delay_seconds):
        with pytest.raises(InvalidArgumentError, match=r"^my_delay: expected seconds, .*most likely meant as ms"):
            convert(wrong, "my_delay")
    longer = timedelta(days=36_000)
    assert delay_ms(longer) == 36_000 * 86_400_000
    with pytest.raises(InvalidArgumentError, match="my_delay: expected at most a year"):
        delay_seconds(longer, "my_delay")


@given(st.integers(0, MAX_DELAY_MS))
def test_whole_milliseconds_survive(milliseconds: int) -> None:
    """Any whole number of ms is kept exactly, as a timedelta and as seconds."""
    assert delay_ms(timedelta(milliseconds=milliseconds)) == milliseconds
    as_number = milliseconds % 31_622_400_000
    assert delay_ms(as_number / 1000) == as_number


@given(st.floats(0, 1e6))
def test_never_less_than_was_asked_for(seconds: float) -> None:
    """A delay is never made shorter than by a float's error, and longer by a ms at most."""
    assert seconds * 1000 * (1 - 2e-15) <= delay_ms(seconds) <= seconds * 1000 + 1


NOW_S = 1_790_000_000


@for_each(
    ("value", "hint"),
    [
        (NOW_S, "not in seconds"),
        (NOW_S + 0.5, "not in seconds"),
        (NOW_S * 10**6, "not in microseconds"),
        (NOW_S * 10**9, "not in nanoseconds"),
        *((each, "epoch ms, got") for each in (-1, 1, 5.5, True, None, "now", b"", 1 << 80)),
        (10**400, "epoch ms, got"),
        (float("nan"), "epoch ms, got nan"),
        (978_307_199_999, "epoch ms, got 978307199999"),
    ],
)
def test_a_publish_time_in_another_unit_is_refused(value: Any, hint: str) -> None:
    """O7: times before 2001 or after 3000 in ms are refused, with a hint if they make sense in another unit."""
    with pytest.raises(InvalidArgumentError, match=rf"^position: expected a MessageId, a datetime, .*{hint}"):
        seek_position(value)


def test_publish_times() -> None:
    """O7: epoch ms, 0 for before all; datetimes with a zone or in local time; messages as they are."""
    for position in (0, NOW_S * 1000, 978_307_200_000, MessageId(1, 2), MessageId(-1, -1)):
        assert seek_position(position) == position
    east = timezone(timedelta(hours=2))
    noon = datetime(2026, 9, 21, 12, 0, 0, 123_999, tzinfo=east)
    assert seek_position(noon) == int(datetime(2026, 9, 21, 10, tzinfo=UTC).timestamp()) * 1000 + 123
    local = noon.astimezone().replace(tzinfo=None)
    assert seek_position(local) == seek_position(noon)
    assert seek_position(datetime(1960, 1, 1, tzinfo=UTC)) == 0
    assert seek_position(5, earliest_ms=0) == 5
