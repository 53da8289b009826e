"""Settings: both spellings, strict values, errors that name the field."""

from __future__ import annotations

import copy
import json
import math
import pickle
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from pulsar_nack import BucketConfig, DelayedDeliveryConfig, NackConfig
from pulsar_nack.config import CursorConfig, TopicConfig
from tests.for_each import for_each


def make(**settings: Any) -> NackConfig:
    """Make a config from any settings."""
    return NackConfig(**settings)


def test_defaults() -> None:
    """The defaults are those of every Pulsar client, with a bounded bucket and a bounded tracker."""
    config = NackConfig()
    assert config.negative_ack_redelivery_delay == timedelta(seconds=60)
    assert config.negative_ack_redelivery_delay_ms == 60_000
    assert config.negative_ack_precision_bit_cnt == 8
    assert config.precision_ratio == 0.125
    assert (config.max_held, config.max_batch, config.max_in_flight) == (100_000_000, 1_000, 4)
    assert config.close_timeout == timedelta(seconds=5)


@for_each(
    ("pulsar_name", "name", "value"),
    [
        ("negativeAckRedeliveryDelay", "negative_ack_redelivery_delay", timedelta(seconds=2)),
        ("negativeAckPrecisionBitCnt", "negative_ack_precision_bit_cnt", 4),
        ("precisionRatio", "precision_ratio", 0.5),
        ("maxHeld", "max_held", 10),
        ("maxBatch", "max_batch", 10),
        ("maxInFlight", "max_in_flight", 10),
        ("closeTimeout", "close_timeout", timedelta(seconds=1)),
    ],
)
def test_both_spellings(pulsar_name: str, name: str, value: object) -> None:
    """Every field is accepted under its own name and under Pulsar's, and not under both at once."""
    assert getattr(make(**{pulsar_name: value}), name) == value
    assert make(**{pulsar_name: value}) == make(**{name: value}) != NackConfig()
    with pytest.raises(ValidationError, match=f"{pulsar_name}: expected the .* once|{name}"):
        make(**{pulsar_name: value, name: value})


@for_each(
    ("kind", "settings"),
    [
        (NackConfig, {"maxHeld": 5, "max_held": 5}),
        (DelayedDeliveryConfig, {"delayedDeliveryTickTimeMillis": 5, "delayed_delivery_tick_time_millis": 5}),
        (BucketConfig, {"delayedDeliveryMaxNumBuckets": 5, "delayed_delivery_max_num_buckets": 5}),
        (CursorConfig, {"flushInterval": 1, "flush_interval": 2}),
        (TopicConfig, {"cacheBytes": 1, "cache_bytes": 1}),
    ],
)
def test_both_names_at_once(kind: Any, settings: dict[str, Any]) -> None:
    """A setting under both of its names is refused with both names, whatever the values are."""
    alias, name = settings
    with pytest.raises(ValidationError, match=f"{alias}: expected the setting once: it is given as {name} too"):
        kind(**settings)
    with pytest.raises(ValidationError, match=f"it is given as {name} too"):
        kind.model_validate_json(json.dumps(settings))
    for each, value in settings.items():
        assert kind(**{each: value}) == kind(**{name: value})


def test_every_field_is_in_the_list_above() -> None:
    """No field is without a test of its two spellings."""
    assert len(NackConfig.model_fields) == 7


@for_each(
    ("settings", "milliseconds"),
    [
        ({"negative_ack_redelivery_delay": 2.5}, 2500),
        ({"negative_ack_redelivery_delay": 2}, 2000),
        ({"negative_ack_redelivery_delay": 0}, 0),
        ({"negativeAckRedeliveryDelay": 86_400}, 86_400_000),
        ({"negativeAckRedeliveryDelay": timedelta(days=30)}, 30 * 86_400_000),
        ({"negative_ack_redelivery_delay_ms": 1500}, 1500),
        ({"negativeAckRedeliveryDelayMs": 90_000_000}, 90_000_000),
    ],
)
def test_delays(settings: dict[str, Any], milliseconds: int) -> None:
    """Delays are seconds or a timedelta; with ``_ms`` in the name they are milliseconds."""
    assert make(**settings).negative_ack_redelivery_delay_ms == milliseconds
    assert make(**settings).negative_ack_redelivery_delay == timedelta(milliseconds=milliseconds)


BAD_DELAYS: list[Any] = [
    math.nan, -1, -0.5, math.inf, -math.inf, True, "1", "PT1S", b"1", None, [1], Decimal(1), timedelta(seconds=-1),
    timedelta.max, 10**400, 10**5000,
]  # fmt: skip


@for_each("field", ["negative_ack_redelivery_delay", "negativeAckRedeliveryDelay", "close_timeout"])
@for_each("value", BAD_DELAYS)
def test_bad_delays(field: str, value: Any) -> None:
    """N24: a delay that is NaN, negative, infinite, huge, a bool or a str is refused with the field's name."""
    with pytest.raises(ValidationError) as caught:
        make(**{field: value})
    assert field in str(caught.value)
    assert "expected seconds" in str(caught.value)


@for_each("value", [-1, 1.5, True, "5", None, math.nan, 10**400, 10**5000])
def test_bad_milliseconds(value: Any) -> None:
    """N24: milliseconds are integers from 0; the error names the field as it was written."""
    for name in ("negative_ack_redelivery_delay_ms", "negativeAckRedeliveryDelayMs"):
        with pytest.raises(ValidationError, match=f"{name}: expected milliseconds"):
            make(**{name: value})


@for_each("value", [86_400.001, 86_401, 90_000.0, 3_000_000])
def test_milliseconds_taken_for_seconds(value: float) -> None:
    """N24: a number above a day is refused, for it is probably meant in ms; the error says how to say that."""
    with pytest.raises(ValidationError, match=r"(?s)negativeAckRedeliveryDelay.*negative_ack_redelivery_delay_ms"):
        make(negativeAckRedeliveryDelay=value)
    with pytest.raises(ValidationError) as caught:
        make(close_timeout=value)
    assert "close_timeout_ms" not in str(caught.value)


def test_delay_given_twice() -> None:
    """A delay in seconds and in ms at once is refused, in any spelling."""
    for seconds in ("negative_ack_redelivery_delay", "negativeAckRedeliveryDelay"):
        for milliseconds in ("negative_ack_redelivery_delay_ms", "negativeAckRedeliveryDelayMs"):
            with pytest.raises(ValidationError, match=f"{milliseconds}: .*once"):
                make(**{seconds: 1, milliseconds: 1000})


@for_each("bits", [0, 1, 8, 62])
def test_good_bits(bits: int) -> None:
    """N24: 0 to 62 bits are good."""
    assert make(negativeAckPrecisionBitCnt=bits).negative_ack_precision_bit_cnt == bits


@for_each("ratio", [5e-324, 0.001, 1, 1.0, None])
def test_good_ratios(ratio: float | None) -> None:
    """N24: ratios above 0 up to 1, and None."""
    assert make(precision_ratio=ratio).precision_ratio == ratio


@for_each(
    ("field", "value"),
    [
        ("negative_ack_precision_bit_cnt", -1),
        ("negative_ack_precision_bit_cnt", 63),
        ("negative_ack_precision_bit_cnt", 1.5),
        ("negative_ack_precision_bit_cnt", 8.0),
        ("negative_ack_precision_bit_cnt", True),
        ("negative_ack_precision_bit_cnt", "8"),
        ("negative_ack_precision_bit_cnt", 10**5000),
        ("negative_ack_precision_bit_cnt", None),
        ("precision_ratio", 0),
        ("precision_ratio", 1.1),
        ("precision_ratio", -0.5),
        ("precision_ratio", math.nan),
        ("precision_ratio", math.inf),
        ("precision_ratio", True),
        ("precision_ratio", "0.5"),
        ("precision_ratio", Decimal("0.5")),
        ("precision_ratio", 10**5000),
        ("max_held", 0),
        ("max_held", -1),
        ("max_held", True),
        ("max_held", 1.0),
        ("max_batch", 0),
        ("max_batch", 1_000_001),
        ("max_batch", None),
        ("max_in_flight", 0),
        ("max_in_flight", "4"),
    ],
)
def test_bad_values(field: str, value: Any) -> None:
    """N24: values out of range or of another type are refused with the field's name; nothing is converted."""
    with pytest.raises(ValidationError) as caught:
        make(**{field: value})
    assert caught.value.error_count() == 1
    assert field in str(caught.value)


@for_each("key", ["negativeAckPrecisionBits", "delay", "NEGATIVE_ACK_REDELIVERY_DELAY", "max_held_"])
def test_unknown_keys(key: str) -> None:
    """N24: an unknown key is refused by its name."""
    with pytest.raises(ValidationError, match=f"(?s){key}.*not permitted"):
        make(**{key: 1})


def test_is_frozen() -> None:
    """No field can be changed, so that a config may be shared."""
    config: Any = NackConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.max_held = 5
    with pytest.raises(ValidationError, match="frozen"):
        del config.max_held


@for_each(
    "config",
    [NackConfig(), make(negative_ack_redelivery_delay=0.0015, precision_ratio=None, max_held=None, max_batch=7)],
)
def test_survives_being_stored(config: NackConfig) -> None:
    """Pickled, copied, dumped to a dict or to JSON, under either spelling, it comes back the same."""
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    for by_alias in (False, True):
        assert NackConfig.model_validate(config.model_dump(by_alias=by_alias)) == config
        assert NackConfig.model_validate_json(config.model_dump_json(by_alias=by_alias)) == config


def test_json_of_a_file() -> None:
    """Settings may come from JSON, and the same rules hold there."""
    config = NackConfig.model_validate_json('{"negativeAckRedeliveryDelay": 2.5, "negativeAckPrecisionBitCnt": 4}')
    assert (config.negative_ack_redelivery_delay_ms, config.negative_ack_precision_bit_cnt) == (2500, 4)
    with pytest.raises(ValidationError, match="negativeAckRedeliveryDelay"):
        NackConfig.model_validate_json('{"negativeAckRedeliveryDelay": "2.5"}')


def test_is_hashable_and_compares() -> None:
    """Equal configs are one key of a dict."""
    assert len({NackConfig(), make(maxBatch=1_000), make(max_batch=7)}) == 2


@for_each("wrong", [None, 5, [], "x"])
def test_not_a_mapping(wrong: Any) -> None:
    """What is no mapping of settings is refused by pydantic, not by an accident."""
    with pytest.raises(ValidationError):
        NackConfig.model_validate(wrong)
