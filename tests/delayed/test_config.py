"""The settings of delayed delivery: Pulsar's names and defaults, strict values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pulsar_nack import DelayedDeliveryConfig
from tests.for_each import for_each


def make(**settings: Any) -> DelayedDeliveryConfig:
    """Make a config from any settings."""
    return DelayedDeliveryConfig(**settings)


@pytest.mark.parametrize(
    ("pulsar_name", "name", "default"),
    [
        ("delayedDeliveryTickTimeMillis", "delayed_delivery_tick_time_millis", 1_000),
        ("isDelayedDeliveryDeliverAtTimeStrict", "is_delayed_delivery_deliver_at_time_strict", False),
        ("delayedDeliveryFixedDelayDetectionLookahead", "delayed_delivery_fixed_delay_detection_lookahead", 50_000),
        ("delayedDeliveryMaxDelayInMillis", "delayed_delivery_max_delay_in_millis", 0),
    ],
)
def test_both_spellings(pulsar_name: str, name: str, default: object) -> None:
    """Every field has Pulsar's default and is accepted under its own name and under Pulsar's."""
    assert getattr(make(), name) == default
    other = True if default is False else 7
    assert getattr(make(**{pulsar_name: other}), name) == other
    assert make(**{pulsar_name: other}) == make(**{name: other}) != make()


@for_each(
    ("name", "value"),
    [
        ("delayedDeliveryTickTimeMillis", -1),
        ("delayedDeliveryTickTimeMillis", True),
        ("delayedDeliveryTickTimeMillis", 1.5),
        ("delayedDeliveryTickTimeMillis", 1 << 62),
        ("isDelayedDeliveryDeliverAtTimeStrict", 1),
        ("delayedDeliveryFixedDelayDetectionLookahead", -1),
        ("delayedDeliveryMaxDelayInMillis", -1),
        ("delayedDeliveryMaxDelay", 1),
    ],
)
def test_bad_settings(name: str, value: object) -> None:
    """A value that cannot be, or a key that is not known, is refused by name."""
    with pytest.raises(ValidationError, match=name):
        make(**{name: value})


def test_longest_delay() -> None:
    """A message whose delay is longer than the bound is to be refused when it is published; 0 is no bound."""
    config = make(delayedDeliveryMaxDelayInMillis=1_000)
    assert not config.exceeds_max_delay(5_000, 4_000)
    assert config.exceeds_max_delay(5_001, 4_000)
    assert not config.exceeds_max_delay(-1, 4_000)
    assert not make().exceeds_max_delay(2**62, 0)
