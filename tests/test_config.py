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

FACTORY = "org.apache.pulsar.broker.delayed.%sDelayedDeliveryTrackerFactory"


def make(**settings: Any) -> NackConfig:
    """Make a config from any settings."""
    return NackConfig(**settings)


SPELLINGS: list[tuple[Any, str, Any, Any]] = [
    (NackConfig, "negativeAckRedeliveryDelay", timedelta(seconds=60), timedelta(seconds=2)),
    (NackConfig, "negativeAckPrecisionBitCnt", 8, 4),
    (NackConfig, "precisionRatio", 0.125, 0.5),
    (NackConfig, "maxHeld", 100_000_000, 10),
    (NackConfig, "maxBatch", 1_000, 10),
    (NackConfig, "maxInFlight", 4, 10),
    (NackConfig, "closeTimeout", timedelta(seconds=5), timedelta(seconds=1)),
    (DelayedDeliveryConfig, "delayedDeliveryTickTimeMillis", 1_000, 7),
    (DelayedDeliveryConfig, "isDelayedDeliveryDeliverAtTimeStrict", False, True),
    (DelayedDeliveryConfig, "delayedDeliveryFixedDelayDetectionLookahead", 50_000, 7),
    (DelayedDeliveryConfig, "delayedDeliveryMaxDelayInMillis", 0, 7),
    (BucketConfig, "delayedDeliveryTickTimeMillis", 1_000, 7),
    (BucketConfig, "delayedDeliveryMinIndexCountPerBucket", 50_000, 7),
    (BucketConfig, "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds", 300, 7),
    (BucketConfig, "delayedDeliveryMaxIndexesPerBucketSnapshotSegment", 5_000, 7),
    (BucketConfig, "delayedDeliveryMaxNumBuckets", -1, 7),
    (BucketConfig, "delayedDeliveryEnabled", True, False),
    (BucketConfig, "delayedDeliverySharedIndexEnabled", False, True),
    (BucketConfig, "delayedDeliveryTrackerFactoryClassName", FACTORY % "InMemory", FACTORY % "Bucket"),
    (BucketConfig, "recoveryTimeout", timedelta(seconds=10), timedelta(seconds=1)),
    (BucketConfig, "closeTimeout", timedelta(seconds=10), timedelta(seconds=1)),
    (CursorConfig, "flushInterval", CursorConfig().flush_interval, timedelta(seconds=7)),
    (TopicConfig, "cacheBytes", TopicConfig().cache_bytes, 1),
]
"""Settings by Pulsar's names, each with its default and another value."""


@for_each(("kind", "alias", "default", "other"), SPELLINGS)
def test_both_spellings(kind: Any, alias: str, default: Any, other: Any) -> None:
    """A field has the default of every Pulsar client and broker, and accepts either of its names, but not both."""
    (name,) = [name for name, field in kind.model_fields.items() if field.alias == alias]
    assert getattr(kind(), name) == default
    assert getattr(kind(**{alias: other}), name) == other
    assert kind(**{alias: other}) == kind(**{name: other}) != kind()
    both = {alias: other, name: other}
    with pytest.raises(ValidationError, match=f"{alias}: expected the setting once: it is given as {name} too"):
        kind(**both)
    if not isinstance(other, timedelta):
        with pytest.raises(ValidationError, match=f"it is given as {name} too"):
            kind.model_validate_json(json.dumps(both))


def test_every_field_is_in_the_list_above() -> None:
    """Every field of these settings has a test of its two spellings."""
    for kind in (NackConfig, DelayedDeliveryConfig):
        assert [field.alias for field in kind.model_fields.values()] == [
            each[1] for each in SPELLINGS if each[0] is kind
        ]
    assert NackConfig().negative_ack_redelivery_delay_ms == 60_000


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
    """N24: milliseconds are integers from 0; the error names the field as the caller wrote it."""
    for name in ("negative_ack_redelivery_delay_ms", "negativeAckRedeliveryDelayMs"):
        with pytest.raises(ValidationError, match=f"{name}: expected milliseconds"):
            make(**{name: value})


@for_each("value", [86_400.001, 86_401, 90_000.0, 3_000_000])
def test_milliseconds_taken_for_seconds(value: float) -> None:
    """N24: a number above a day is refused, because it is probably meant in ms; the error says how to say that."""
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


BAD: dict[tuple[Any, str], list[Any]] = {
    (NackConfig, "negative_ack_precision_bit_cnt"): [-1, 63, 1.5, 8.0, True, "8", 10**5000, None],
    (NackConfig, "precision_ratio"): [0, 1.1, -0.5, math.nan, math.inf, True, "0.5", Decimal("0.5"), 10**5000],
    (NackConfig, "max_held"): [0, -1, True, 1.0],
    (NackConfig, "max_batch"): [0, 1_000_001, None],
    (NackConfig, "max_in_flight"): [0, "4"],
    (DelayedDeliveryConfig, "delayedDeliveryTickTimeMillis"): [-1, True, 1.5, 1 << 62],
    (DelayedDeliveryConfig, "isDelayedDeliveryDeliverAtTimeStrict"): [1],
    (DelayedDeliveryConfig, "delayedDeliveryFixedDelayDetectionLookahead"): [-1],
    (DelayedDeliveryConfig, "delayedDeliveryMaxDelayInMillis"): [-1],
    (BucketConfig, "delayedDeliveryMinIndexCountPerBucket"): [0],
    (BucketConfig, "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds"): [0, math.nan],
    (BucketConfig, "delayedDeliveryMaxIndexesPerBucketSnapshotSegment"): [0, -2],
    (BucketConfig, "delayedDeliveryMaxNumBuckets"): [0],
    (BucketConfig, "maxIndexesPerBucket"): [0],
    (BucketConfig, "maxUnsealedAge"): [-1],
    (BucketConfig, "maxUnsealedIndexes"): [0],
    (BucketConfig, "prefetch"): ["soon"],
    (BucketConfig, "recoveryTimeout"): [-1],
    (BucketConfig, "delayedDeliveryEnabled"): ["yes"],
    (BucketConfig, "delayedDeliverySharedIndexEnabled"): [1],
    (BucketConfig, "delayedDeliveryTrackerFactoryClassName"): ["org.example.Factory"],
}


@for_each(("kind", "field", "value"), [(*of, value) for of, values in BAD.items() for value in values])
def test_bad_values(kind: Any, field: str, value: Any) -> None:
    """N24: values out of range or of another type are refused with the field's name; nothing is converted."""
    with pytest.raises(ValidationError) as caught:
        kind(**{field: value})
    assert caught.value.error_count() == 1
    assert field in str(caught.value)


@for_each("kind", [NackConfig, DelayedDeliveryConfig, BucketConfig])
@for_each("key", ["negativeAckPrecisionBits", "delay", "NEGATIVE_ACK_REDELIVERY_DELAY", "max_held_", "maxNumBucket"])
def test_unknown_keys(kind: Any, key: str) -> None:
    """N24: an unknown key is refused by its name."""
    with pytest.raises(ValidationError, match=f"(?s){key}.*not permitted"):
        kind(**{key: 1})


def test_is_frozen() -> None:
    """No field can be changed, so that a config may be shared."""
    config: Any = NackConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.max_held = 5
    with pytest.raises(ValidationError, match="frozen"):
        del config.max_held


@for_each(
    "config",
    [
        NackConfig(),
        make(negative_ack_redelivery_delay=0.0015, precision_ratio=None, max_held=None, max_batch=7),
        make(negative_ack_redelivery_delay=timedelta(days=400, milliseconds=1)),
    ],
)
def test_survives_being_stored(config: NackConfig) -> None:
    """Pickled, copied, dumped to a dict or to JSON, in either spelling, it is equal when loaded."""
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
    assert NackConfig.model_validate_json('{"negativeAckRedeliveryDelay": "P2DT1H"}').negative_ack_redelivery_delay == (
        timedelta(days=2, hours=1)
    )
    with pytest.raises(ValidationError, match="a duration by ISO 8601 as P2D, got 'P2 days'"):
        NackConfig.model_validate_json('{"negativeAckRedeliveryDelay": "P2 days"}')


def test_is_hashable_and_compares() -> None:
    """Equal configs are one key of a dict."""
    assert len({NackConfig(), make(maxBatch=1_000), make(max_batch=7)}) == 2


@for_each("wrong", [None, 5, [], "x"])
def test_not_a_mapping(wrong: Any) -> None:
    """A value that is no mapping of settings is refused by pydantic."""
    with pytest.raises(ValidationError):
        NackConfig.model_validate(wrong)


def test_longest_delay() -> None:
    """Messages with a longer delay than the bound are refused when published; 0 means no bound."""
    config = DelayedDeliveryConfig(delayedDeliveryMaxDelayInMillis=1_000)
    assert not config.exceeds_max_delay(5_000, 4_000)
    assert config.exceeds_max_delay(5_001, 4_000)
    assert not config.exceeds_max_delay(-1, 4_000)
    assert not DelayedDeliveryConfig().exceeds_max_delay(2**62, 0)


def test_what_follows_from_settings_of_buckets() -> None:
    """Segments are cut in whole ms, at least one; a bucket has a maximum size even when none was given."""
    assert BucketConfig().segment_step_ms == 300_000
    assert BucketConfig(delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=0.0001).segment_step_ms == 1
    assert BucketConfig().largest_bucket == 100_000
    assert BucketConfig(max_indexes_per_bucket=60_000).largest_bucket == 60_000
    assert BucketConfig(max_unsealed_age=1.5).max_unsealed_age == timedelta(seconds=1.5)
