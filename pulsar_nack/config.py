"""Frozen settings; every field is also accepted under its Pulsar name, unknown keys are refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from ._check import path_of
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


def _as_delay(value: Any, info: ValidationInfo) -> timedelta:
    field = info.field_name or "delay"
    milliseconds = delay_ms(value, field)
    if not isinstance(value, timedelta) and value > _DAY_S:
        instead = f"{field}_ms" if field == "negative_ack_redelivery_delay" else "seconds"
        raise InvalidArgumentError(
            field, value, f"at most a day of seconds (for ms use {instead}, for days a timedelta)"
        )
    return timedelta(milliseconds=milliseconds)


def _as_ratio(value: Any, info: ValidationInfo) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:  # false for NaN too
        raise InvalidArgumentError(info.field_name or "ratio", value, "a number above 0 and at most 1, or None")
    return float(value)


DelayField = Annotated[timedelta, BeforeValidator(_as_delay)]

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


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=_camel,
        populate_by_name=True,
        ser_json_timedelta="float",  # what model_dump_json writes, model_validate_json reads
    )

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, data: Any) -> Any:
        """Refuse a setting that is given under both of its names."""
        for name in cls.model_fields if isinstance(data, dict) else ():
            alias = _camel(name)
            if alias != name and name in data and alias in data:
                raise InvalidArgumentError(alias, data[alias], f"the setting once: it is given as {name} too")
        return data


class NackConfig(_Settings):
    """How negative acknowledgements are kept (PIP-393).

    Delays are seconds as a number, or a timedelta. A bucket of time is ``2 ** negative_ack_precision_bit_cnt`` ms wide,
    and never wider than ``precision_ratio`` of the delay; deadlines are rounded down to the start of their bucket, so a
    message may come back early by less than a bucket and is never asked for late.
    """

    negative_ack_redelivery_delay: DelayField = timedelta(seconds=60)
    """Delay of a nack that names none, as every Pulsar client has it. Also ``negative_ack_redelivery_delay_ms``."""
    negative_ack_precision_bit_cnt: int = Field(default=8, ge=0, le=MAX_PRECISION_BITS)
    """Buckets are 2**n ms wide, 0 to 62."""
    precision_ratio: Annotated[float | None, BeforeValidator(_as_ratio)] = 0.125
    """A bucket is never wider than this share of the delay, 0 < r <= 1; None: as the proposal has it."""
    max_held: int | None = Field(default=100_000_000, ge=1)
    """Most ids that are pending at once; None: no bound."""
    max_batch: int = Field(default=1_000, ge=1, le=1_000_000)
    """Most ids in one call of the redelivery callback."""
    max_in_flight: int = Field(default=4, ge=1, le=10_000)
    """Most redelivery callbacks that run at once."""
    close_timeout: DelayField = timedelta(seconds=5)
    """How long closing waits for callbacks that are under way."""

    if TYPE_CHECKING:  # delays as numbers and Pulsar's names are good too, which a type checker cannot derive

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
    """How delayed messages are held back until they may be dispatched; all times are whole ms, as in Pulsar."""

    delayed_delivery_tick_time_millis: int = Field(default=1_000, ge=0, le=MAX_DELAY_MS)
    """The tick: no two wake-ups are closer, and in memory a bucket of time is ``2**floor(log2(tick))`` ms wide."""
    is_delayed_delivery_deliver_at_time_strict: bool = False
    """True: no message is dispatched before its time. False: it may be, by up to a tick."""
    delayed_delivery_fixed_delay_detection_lookahead: int = Field(default=50_000, ge=0)
    """Deliveries pause when so many messages wait and all have the same delay; 0: never."""
    delayed_delivery_max_delay_in_millis: int = Field(default=0, ge=0)
    """Longest delay that may be published; 0: no bound. Trackers do not look at it, see :meth:`exceeds_max_delay`."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...

    def exceeds_max_delay(self, deliver_at: int, publish_at: int) -> bool:
        """Return whether a message must be refused when it is published at ``publish_at`` (both epoch ms).

        This is the publisher's check, as in Pulsar: once stored, a message is held back for as long as it asks for.
        """
        longest = self.delayed_delivery_max_delay_in_millis
        return 0 < longest < deliver_at - publish_at


class BucketConfig(DelayedDeliveryConfig):
    """Which tracker there is, and how the bucket tracker (PIP-195) cuts its index; also what all trackers have.

    The first three are for a :class:`~pulsar_nack.DelayedDeliveryTrackerFactory`; a tracker does not look at them.
    """

    delayed_delivery_enabled: bool = True
    """False: nothing is held back."""
    delayed_delivery_tracker_factory_class_name: Annotated[str, BeforeValidator(_as_factory)] = IN_MEMORY_FACTORY
    """Pulsar's class name of the factory, whole or its last part; also ``memory``, ``bucket``, ``none``."""
    delayed_delivery_shared_index_enabled: bool = False
    """True: the subscriptions of a topic share one bucket index."""
    delayed_delivery_min_index_count_per_bucket: int = Field(default=50_000, ge=1)
    """A bucket is sealed when a new ledger begins, or it is old, and it has so many indexes."""
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: float = Field(default=300, gt=0, le=_DAY_S)
    """The times of a segment are less than this apart; a thousandth is the least."""
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = Field(default=5_000, ge=-1)
    """Most indexes in a segment; -1: no bound."""
    delayed_delivery_max_num_buckets: int = Field(default=-1, ge=-1)
    """More sealed buckets than this are merged; -1: no bound."""
    max_indexes_per_bucket: int | None = Field(default=None, ge=1)
    """A bucket is sealed at this size whatever its ledgers; None: at twice the least that seals one."""
    max_unsealed_age: DelayField = timedelta(minutes=5)
    """A bucket that has enough indexes is sealed when its first is older than this."""
    max_unsealed_indexes: int = Field(default=1_000_000, ge=1)
    """Deliveries pause while more indexes than this are on no storage."""
    prefetch: DelayField = timedelta(seconds=2)
    """How long before its first message a segment is loaded."""
    recovery_timeout: DelayField = timedelta(seconds=10)
    """How long a factory waits for storage, and for all snapshots to be tried, before it falls back to memory."""
    close_timeout: DelayField = timedelta(seconds=10)
    """How long closing a tracker that has its storage with it waits for that."""

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
        """Return the size at which a bucket is sealed whatever its ledgers."""
        least = self.delayed_delivery_min_index_count_per_bucket
        return 2 * least if self.max_indexes_per_bucket is None else max(self.max_indexes_per_bucket, least)


_METADATA_LIMIT: Final = "max_per_cursor_metadata_size_in_bytes"
_METADATA_LIMIT_ALIASES: Final = (
    _METADATA_LIMIT,
    "maxPerCursorMetadataSizeInBytes",
    "max_un_persist_ack_records_bytes_per_subscription",
    "maxUnPersistAckRecordsBytesPerSubscription",
)
_LEAST_METADATA_LIMIT: Final = 1_024


class CursorConfig(_Settings):
    """How a subscription's acknowledgement state is kept (PIP-81), and when it is too large (PIP-299)."""

    enable_lru_cache_max_unacked_ranges: bool = True
    """True: an entry for each ledger and a marker, and a bounded cache. False: all in one entry, the old form."""
    max_individual_ack_cache_bytes_per_cursor: int = Field(default=3 << 20, ge=0)
    """Ledgers are put out of memory above this; at least one stays in it."""
    managed_ledger_max_unacked_ranges_to_persist: int = Field(default=10_000, ge=0)
    """Most ranges that the old form writes; what is more is written by no flush, and comes again after a restart."""
    max_per_cursor_metadata_size_in_bytes: int = 5_242_880
    """Dispatch stops before the state is larger, in bytes; at least 1,024, below 1: no limit.

    Also ``maxUnPersistAckRecordsBytesPerSubscription``.
    """
    max_entry_bytes: int = Field(default=5 << 20, ge=1 << 10, le=15 << 20)
    """Largest record; the state of a ledger that takes more is cut into parts."""
    managed_ledger_cursor_max_entries_per_ledger: int = Field(default=50_000, ge=2)
    """From so many records on the cursor goes on in a new log, when most of them do not count any more."""
    rollover_bytes: int = Field(default=16 << 20, ge=0)
    """From this size on the cursor goes on in a new log, when most of it does not count any more."""
    flush_interval: DelayField = timedelta(seconds=1)
    """How long after a change the state is written, unless :meth:`~pulsar_nack.Cursor.flush` is called before."""
    close_timeout: DelayField = timedelta(seconds=10)
    """How long closing waits for the last write."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, data: Any) -> Any:
        """Take the limit under each of its names, and refuse one that is on but too low to be of use."""
        if not isinstance(data, dict):
            return data
        given = [name for name in _METADATA_LIMIT_ALIASES if name in data]
        if len(given) > 1:
            raise InvalidArgumentError(given[1], data[given[1]], "the limit to be given once")
        if not given:
            return data
        data = dict(data)
        value = data.pop(given[0])
        if isinstance(value, int) and 1 <= value < _LEAST_METADATA_LIMIT:
            raise InvalidArgumentError(given[0], value, f"below 1 for no limit, or at least {_LEAST_METADATA_LIMIT}")
        return {**data, _METADATA_LIMIT: value}


class TopicConfig(_Settings):
    """When a local topic goes on in a new ledger, and how its subscriptions keep what is acknowledged."""

    max_entries_per_ledger: int = Field(default=50_000, ge=1)
    """A ledger is full with so many entries."""
    max_ledger_bytes: int = Field(default=256 << 20, ge=1)
    """A ledger is full when it takes so many bytes."""
    max_ledger_age: DelayField = timedelta(hours=4)
    """A ledger that has an entry is not used for longer than this."""
    max_entry_bytes: int = Field(default=5 << 20, ge=1, le=15 << 20)
    """Largest entry, a batch with all its messages."""
    cache_bytes: int = Field(default=16 << 20, ge=0)
    """How much of what was published last is kept in memory, for consumers who keep up."""
    hold_due_delayed: bool = False
    """While the gate holds new messages, whether delayed ones that come due wait too, also those that fill holes."""
    cursor: CursorConfig = Field(default_factory=CursorConfig)
    """How acknowledgements are kept, and how much of them."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...


def _as_folder(value: Any, info: ValidationInfo) -> Path:
    path = path_of(value)
    if path is None:
        raise InvalidArgumentError(info.field_name or "folder", value, "a path")
    return path


class TraceConfig(_Settings):
    """Where a trace is written, and how much of it is in one file and in memory."""

    folder: Annotated[Path, BeforeValidator(_as_folder)]
    """Made when the first event is written; other files in it are not touched."""
    max_file_bytes: int = Field(default=64 << 20, ge=1_024)
    """A file is closed before it is larger, in bytes; up to 500 lines are written at once."""
    max_file_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """A file is closed when it was opened so many seconds ago."""
    max_buffered_events: int = Field(default=100_000, ge=1)
    """Most events in memory, some 300 bytes each; what comes when it is full is dropped and counted."""
    flush_seconds: float = Field(default=0.5, gt=0, le=3_600, allow_inf_nan=False)
    """How long an event is in memory only."""

    if TYPE_CHECKING:  # as above

        def __init__(self, **settings: Any) -> None: ...
