"""Frozen settings; every field is also accepted under its Pulsar name, unknown keys are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from ._delays import MAX_DELAY_MS, delay_ms
from .errors import InvalidArgumentError

__all__ = ["MAX_PRECISION_BITS", "DelayedDeliveryConfig", "NackConfig"]

MAX_PRECISION_BITS: Final = 62
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

    def exceeds_max_delay(self, deliver_at: int, publish_at: int) -> bool:
        """Return whether a message must be refused when it is published at ``publish_at`` (both epoch ms).

        This is the publisher's check, as in Pulsar: once stored, a message is held back for as long as it asks for.
        """
        longest = self.delayed_delivery_max_delay_in_millis
        return 0 < longest < deliver_at - publish_at
