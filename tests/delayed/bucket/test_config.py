"""The settings of the bucket tracker: Pulsar's names and defaults, strict values."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from pulsar_nack import BucketConfig
from tests.for_each import for_each


def make(**settings: Any) -> BucketConfig:
    """Make a config from any settings."""
    return BucketConfig(**settings)


@for_each(
    ("pulsar_name", "name", "default"),
    [
        ("delayedDeliveryTickTimeMillis", "delayed_delivery_tick_time_millis", 1_000),
        ("delayedDeliveryMinIndexCountPerBucket", "delayed_delivery_min_index_count_per_bucket", 50_000),
        (
            "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds",
            "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds",
            300,
        ),
        (
            "delayedDeliveryMaxIndexesPerBucketSnapshotSegment",
            "delayed_delivery_max_indexes_per_bucket_snapshot_segment",
            5_000,
        ),
        ("delayedDeliveryMaxNumBuckets", "delayed_delivery_max_num_buckets", -1),
    ],
)
def test_both_spellings(pulsar_name: str, name: str, default: object) -> None:
    """Every field has Pulsar's default and is accepted under its own name and under Pulsar's."""
    assert getattr(make(), name) == default
    assert make(**{pulsar_name: 7}) == make(**{name: 7}) != make()


@for_each(
    ("name", "value"),
    [
        ("delayedDeliveryMinIndexCountPerBucket", 0),
        ("delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds", 0),
        ("delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds", float("nan")),
        ("delayedDeliveryMaxIndexesPerBucketSnapshotSegment", 0),
        ("delayedDeliveryMaxIndexesPerBucketSnapshotSegment", -2),
        ("delayedDeliveryMaxNumBuckets", 0),
        ("maxIndexesPerBucket", 0),
        ("maxUnsealedAge", -1),
        ("maxUnsealedIndexes", 0),
        ("prefetch", "soon"),
        ("recoveryTimeout", -1),
        ("delayedDeliveryEnabled", "yes"),
        ("delayedDeliverySharedIndexEnabled", 1),
        ("delayedDeliveryTrackerFactoryClassName", "org.example.Factory"),
        ("delayedDeliveryMaxNumBucket", 1),
    ],
)
def test_bad_settings(name: str, value: object) -> None:
    """A value that cannot be, or a key that is not known, is refused by name."""
    with pytest.raises(ValidationError, match=name):
        make(**{name: value})


@for_each(
    ("pulsar_name", "name", "default", "other"),
    [
        ("delayedDeliveryEnabled", "delayed_delivery_enabled", True, False),
        ("delayedDeliverySharedIndexEnabled", "delayed_delivery_shared_index_enabled", False, True),
        (
            "delayedDeliveryTrackerFactoryClassName",
            "delayed_delivery_tracker_factory_class_name",
            "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory",
            "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
        ),
        ("recoveryTimeout", "recovery_timeout", timedelta(seconds=10), timedelta(seconds=1)),
        ("closeTimeout", "close_timeout", timedelta(seconds=10), timedelta(seconds=1)),
    ],
)
def test_both_spellings_of_what_is_no_number(pulsar_name: str, name: str, default: object, other: object) -> None:
    """Switches, names and times too have their defaults and both names."""
    assert getattr(make(), name) == default
    assert getattr(make(**{pulsar_name: other}), name) == getattr(make(**{name: other}), name) == other


@for_each(
    ("settings", "kind"),
    [
        ({}, "memory"),
        ({"delayedDeliveryTrackerFactoryClassName": "BucketDelayedDeliveryTrackerFactory"}, "bucket"),
        ({"delayedDeliveryTrackerFactoryClassName": "bucket", "delayedDeliveryEnabled": False}, "none"),
        ({"delayedDeliveryTrackerFactoryClassName": "disabled"}, "none"),
        ({"delayedDeliveryTrackerFactoryClassName": None}, "none"),
    ],
)
def test_kind_of_tracker(settings: dict[str, Any], kind: str) -> None:
    """The class name says which tracker there is, unless delayed delivery is off; a dump of it is read again."""
    config = make(**settings)
    assert config.tracker_kind == kind
    assert BucketConfig.model_validate_json(config.model_dump_json(by_alias=True)) == config


def test_what_follows() -> None:
    """Segments are cut in whole ms, at least one; a bucket has a largest size even when none was given."""
    assert make().segment_step_ms == 300_000
    assert make(delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=0.0001).segment_step_ms == 1
    assert make().largest_bucket == 100_000
    assert make(max_indexes_per_bucket=60_000).largest_bucket == 60_000
    assert make(max_unsealed_age=1.5).max_unsealed_age == timedelta(seconds=1.5)
