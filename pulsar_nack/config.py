"""Frozen settings. Every field is also accepted under its Pulsar name; unknown keys are refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ._check import as_folder, check_metadata_limit
from ._delays import MAX_DELAY_MS, delay_ms
from .errors import InvalidArgumentError

__all__ = [
    "MAX_PRECISION_BITS",
    "BucketConfig",
    "CursorConfig",
    "DelayedDeliveryConfig",
    "NackConfig",
    "TopicConfig",
    "TraceConfig",
]

MAX_PRECISION_BITS: Final = 62
DELAYED_PREFIX: Final = "#pulsar.internal.delayed."
"""Prefix of the cursor properties that name snapshots of delayed messages."""
_DAY_S: Final = 86_400
_DURATION: Final = TypeAdapter(timedelta)


def _as_delay(value: Any, info: ValidationInfo) -> timedelta:
    field = info.field_name or "delay"
    if info.mode == "json" and isinstance(value, str) and value.startswith("P"):
        try:
            value = _DURATION.validate_python(value)
        except ValidationError:
            raise InvalidArgumentError(field, value, "seconds, or a duration by ISO 8601 as P2D") from None
    milliseconds = delay_ms(value, field)
    if not isinstance(value, timedelta) and value > _DAY_S:
        instead = f"{field}_ms" if field == "negative_ack_redelivery_delay" else "seconds"
        raise InvalidArgumentError(
            field, value, f"at most a day of seconds (for ms use {instead}, for days a timedelta)"
        )
    return timedelta(milliseconds=milliseconds)


def _delay_to_json(value: timedelta) -> object:
    """Return seconds, or a duration by ISO 8601 for more than a day, which is refused as a number."""
    seconds = value.total_seconds()
    return seconds if seconds <= _DAY_S else _DURATION.dump_python(value, mode="json")


def _as_ratio(value: Any, info: ValidationInfo) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:  # false for NaN too
        raise InvalidArgumentError(info.field_name or "ratio", value, "a number above 0 and at most 1, or None")
    return float(value)


DelayField = Annotated[timedelta, BeforeValidator(_as_delay), PlainSerializer(_delay_to_json, object, when_used="json")]

IN_MEMORY_FACTORY: Final = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
BUCKET_FACTORY: Final = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
NO_FACTORY: Final = "none"
_FACTORIES: Final[dict[str | None, str]] = {
    **dict.fromkeys((IN_MEMORY_FACTORY, IN_MEMORY_FACTORY.rpartition(".")[2], "memory"), IN_MEMORY_FACTORY),
    **dict.fromkeys((BUCKET_FACTORY, BUCKET_FACTORY.rpartition(".")[2], "bucket"), BUCKET_FACTORY),
    **dict.fromkeys((NO_FACTORY, "disabled", None), NO_FACTORY),
}


def _as_factory(value: Any, info: ValidationInfo) -> str:
    known = _FACTORIES.get(value) if isinstance(value, str | None) else None
    if known is None:
        names = ", ".join(name for name in _FACTORIES if name)
        raise InvalidArgumentError(info.field_name or "factory", value, f"one of {names}")
    return known


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, data: Any) -> Any:
        """Raise if a setting is given under both of its names."""
        for name in cls.model_fields if isinstance(data, dict) else ():
            alias = to_camel(name)
            if alias != name and name in data and alias in data:
                raise InvalidArgumentError(alias, data[alias], f"the setting once: it is given as {name} too")
        return data


class NackConfig(_Settings):
    """How negative acknowledgements are kept (PIP-393).

    Delays are seconds as a number, or a timedelta. A time bucket is ``2 ** negative_ack_precision_bit_cnt`` ms wide,
    and never wider than ``precision_ratio`` of the delay. Deadlines are rounded down to the start of their bucket, so a
    redelivery may be requested early by less than a bucket, and never late.
    """

    negative_ack_redelivery_delay: DelayField = timedelta(seconds=60)
    """Delay of nacks without one; the default is that of Pulsar clients. Also ``negative_ack_redelivery_delay_ms``."""
    negative_ack_precision_bit_cnt: int = Field(default=8, ge=0, le=MAX_PRECISION_BITS)
    """Buckets are 2**n ms wide, 0 to 62."""
    precision_ratio: Annotated[float | None, BeforeValidator(_as_ratio)] = 0.125
    """A bucket is never wider than this share of the delay, 0 < r <= 1; None: no such limit, as in the proposal."""
    max_held: int | None = Field(default=100_000_000, ge=1)
    """Most ids that are held at once; None: no limit."""
    max_batch: int = Field(default=1_000, ge=1, le=1_000_000)
    """Most ids in one call of the redelivery callback."""
    max_in_flight: int = Field(default=4, ge=1, le=10_000)
    """Most calls of the redelivery callback that run at once."""
    close_timeout: DelayField = timedelta(seconds=5)
    """How long closing waits for calls in flight."""

    if TYPE_CHECKING:  # a type checker cannot derive that numbers and Pulsar's names are accepted

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _milliseconds(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        delay_names = ("negative_ack_redelivery_delay", "negativeAckRedeliveryDelay")
        ms_names = ("negative_ack_redelivery_delay_ms", "negativeAckRedeliveryDelayMs")
        data = dict(data)
        for name in ms_names:
            if name not in data:
                continue
            if any(other in data for other in delay_names):
                raise InvalidArgumentError(name, data[name], "the delay to be given once, in seconds or in ms")
            value = data.pop(name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DELAY_MS:
                raise InvalidArgumentError(name, value, "milliseconds as an integer from 0 to a century")
            data[delay_names[0]] = timedelta(milliseconds=value)
        return data

    @property
    def negative_ack_redelivery_delay_ms(self) -> int:
        """Return the default delay in ms."""
        return delay_ms(self.negative_ack_redelivery_delay)


class DelayedDeliveryConfig(_Settings):
    """How delayed messages are held back until they may be dispatched; all times are in whole ms, as in Pulsar."""

    delayed_delivery_tick_time_millis: int = Field(default=1_000, ge=0, le=MAX_DELAY_MS)
    """The tick: the least time between two wake-ups; in memory a time bucket is ``2**floor(log2(tick))`` ms wide."""
    is_delayed_delivery_deliver_at_time_strict: bool = False
    """True: no message is dispatched before its time. False: it may be, by up to a tick."""
    delayed_delivery_fixed_delay_detection_lookahead: int = Field(default=50_000, ge=0)
    """Deliveries pause if at least this many messages are delayed and all have the same delay; 0: never."""
    delayed_delivery_max_delay_in_millis: int = Field(default=0, ge=0)
    """Longest delay that may be published; 0: no limit. Trackers ignore it, see :meth:`exceeds_max_delay`."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...

    def exceeds_max_delay(self, deliver_at: int, publish_at: int) -> bool:
        """Return whether a message that is published at ``publish_at`` must be refused (both in epoch ms).

        This is a check for publishers, as in Pulsar: a stored message is held back for its whole delay.
        """
        longest = self.delayed_delivery_max_delay_in_millis
        return 0 < longest < deliver_at - publish_at


class BucketConfig(DelayedDeliveryConfig):
    """Settings of bucket trackers (PIP-195), with the choice of the tracker and the settings that all trackers share.

    The first three are for a :class:`~pulsar_nack.delayed.DelayedDeliveryTrackerFactory`; trackers ignore them.
    """

    delayed_delivery_enabled: bool = True
    """False: no message is held back."""
    delayed_delivery_tracker_factory_class_name: Annotated[str, BeforeValidator(_as_factory)] = IN_MEMORY_FACTORY
    """Pulsar's class name of the factory, or its last part; also ``memory``, ``bucket``, ``none``."""
    delayed_delivery_shared_index_enabled: bool = False
    """True: the subscriptions of a topic share one bucket index."""
    delayed_delivery_min_index_count_per_bucket: int = Field(default=50_000, ge=1)
    """A bucket with at least this many indexes, or ``max_unsealed_indexes``, is sealed when a new ledger begins, or
    when the bucket is old."""
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: float = Field(default=300, gt=0, le=_DAY_S)
    """The times of a segment are less than this apart, at least a thousandth of a second."""
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = Field(default=5_000, ge=-1)
    """Most indexes in a segment; -1: no limit."""
    delayed_delivery_max_num_buckets: int = Field(default=-1, ge=-1)
    """If there are more sealed buckets, some are merged; -1: no limit."""
    max_indexes_per_bucket: int | None = Field(default=None, ge=1)
    """A bucket is always sealed at this size; None: at twice the minimum that is required for sealing. A bucket is
    sealed at ``max_unsealed_indexes`` at the latest."""
    max_unsealed_age: DelayField = timedelta(minutes=5)
    """A bucket with enough indexes is sealed when its first one is older than this."""
    max_unsealed_indexes: int = Field(default=1_000_000, ge=1)
    """Deliveries pause while more indexes than this are not stored yet."""
    prefetch: DelayField = timedelta(seconds=2)
    """How long before its first message a segment is loaded."""
    recovery_timeout: DelayField = timedelta(seconds=10)
    """How long a factory waits for the storage and for all snapshots before it falls back to memory."""
    close_timeout: DelayField = timedelta(seconds=10)
    """How long closing a tracker waits for the storage that belongs to it."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...

    @field_validator(
        "delayed_delivery_max_indexes_per_bucket_snapshot_segment", "delayed_delivery_max_num_buckets", mode="after"
    )
    @classmethod
    def _not_zero(cls, value: int, info: ValidationInfo) -> int:
        if value == 0:
            raise InvalidArgumentError(info.field_name or "value", value, "at least 1, or -1 for no bound")
        return value

    @property
    def tracker_kind(self) -> Literal["memory", "bucket", "none"]:
        """Return which tracker is chosen."""
        if not self.delayed_delivery_enabled or self.delayed_delivery_tracker_factory_class_name == NO_FACTORY:
            return "none"
        return "bucket" if self.delayed_delivery_tracker_factory_class_name == BUCKET_FACTORY else "memory"

    @property
    def segment_step_ms(self) -> int:
        """Return how far apart the times of a segment may be, in ms, at least 1."""
        return max(round(self.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds * 1000), 1)

    @property
    def largest_bucket(self) -> int:
        """Return the size at which a bucket is always sealed: at most the one beyond which deliveries pause."""
        least = self.delayed_delivery_min_index_count_per_bucket
        largest = 2 * least if self.max_indexes_per_bucket is None else max(self.max_indexes_per_bucket, least)
        return min(largest, self.max_unsealed_indexes)


_METADATA_LIMIT: Final = "max_per_cursor_metadata_size_in_bytes"
_METADATA_LIMIT_ALIASES: Final = (
    _METADATA_LIMIT,
    "maxPerCursorMetadataSizeInBytes",
    "max_un_persist_ack_records_bytes_per_subscription",
    "maxUnPersistAckRecordsBytesPerSubscription",
)


class CursorConfig(_Settings):
    """How the acknowledgement state of a subscription is stored (PIP-81), and when it is too large (PIP-299)."""

    enable_lru_cache_max_unacked_ranges: bool = True
    """True: an entry for each ledger and a marker, and a bounded cache. False: one entry for all, the legacy format."""
    max_individual_ack_cache_bytes_per_cursor: int = Field(default=3 << 20, ge=0)
    """Above this, ledgers are evicted from memory; at least one stays."""
    managed_ledger_max_unacked_ranges_to_persist: int = Field(default=10_000, ge=0)
    """Most ranges that the legacy format stores. Messages of further ranges are redelivered after a restart."""
    max_per_cursor_metadata_size_in_bytes: int = 5_242_880
    """Dispatch stops before the state is larger than this, in bytes; at least 1,024, below 1: no limit.

    Also ``maxUnPersistAckRecordsBytesPerSubscription``.
    """
    max_entry_bytes: int = Field(default=5 << 20, ge=1 << 10, le=15 << 20)
    """Largest record; a larger state of a ledger is cut into parts."""
    managed_ledger_cursor_max_entries_per_ledger: int = Field(default=50_000, ge=2)
    """The cursor changes to a new log when it has this many records and most of them are obsolete."""
    rollover_bytes: int = Field(default=16 << 20, ge=0)
    """The cursor changes to a new log when it has this size and most of it is obsolete."""
    flush_interval: DelayField = timedelta(seconds=1)
    """How long after a change the state is written, unless :meth:`~pulsar_nack.Cursor.flush` is called earlier."""
    close_timeout: DelayField = timedelta(seconds=10)
    """How long closing waits for the last write."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, data: Any) -> Any:
        """Accept the limit under each of its names, and raise if it is too low to be useful."""
        if not isinstance(data, dict):
            return data
        given = [name for name in _METADATA_LIMIT_ALIASES if name in data]
        if len(given) > 1:
            raise InvalidArgumentError(given[1], data[given[1]], "the limit to be given once")
        if not given:
            return data
        data = dict(data)
        value = data.pop(given[0])
        if isinstance(value, int):  # other types are refused by pydantic
            check_metadata_limit(given[0], value)
        return {**data, _METADATA_LIMIT: value}


class TopicConfig(_Settings):
    """When a local topic begins a new ledger, and how its subscriptions store acknowledgements."""

    max_entries_per_ledger: int = Field(default=50_000, ge=1)
    """A ledger is full when it has this many entries."""
    max_ledger_bytes: int = Field(default=256 << 20, ge=1)
    """A ledger is full when it has this many bytes."""
    max_ledger_age: DelayField = timedelta(hours=4)
    """A ledger that is not empty is used for at most this long."""
    max_entry_bytes: int = Field(default=5 << 20, ge=1, le=15 << 20)
    """Largest entry, including all messages of a batch."""
    cache_bytes: int = Field(default=16 << 20, ge=0)
    """How many bytes of the latest messages are kept in memory, for consumers that keep up."""
    hold_due_delayed: bool = False
    """Whether delayed messages that are due wait while the gate holds new messages, even those that fill holes."""
    cursor: CursorConfig = Field(default_factory=CursorConfig)
    """How acknowledgements are stored, and how many."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...


def _as_local_folder(value: Any) -> Path:
    expected = "the path of a local folder; copy closed files from there to object storage"
    return as_folder("folder", value, for_urls=expected)


class TraceConfig(_Settings):
    """Where a trace is written, and how much of it is in one file and in memory."""

    folder: Annotated[Path, BeforeValidator(_as_local_folder)]
    """On a local file system. Created with the first event; other files in it are ignored."""
    max_file_bytes: int = Field(default=64 << 20, ge=1_024)
    """A file is closed before it is larger than this, in bytes; up to 500 lines are written at once."""
    max_file_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """A file is closed this many seconds after it was opened."""
    max_buffered_events: int = Field(default=100_000, ge=1)
    """Most events in memory, some 300 bytes each; further ones are dropped and counted."""
    flush_seconds: float = Field(default=0.5, gt=0, le=3_600, allow_inf_nan=False)
    """How long an event stays in memory before it is written."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...
