"""Names that the packages of transports share with consumers; users who write a port need none of them."""

from ._dialect import (
    AnyPosition,
    AnyType,
    DialectSettings,
    InitialPosition,
    SubscriptionType,
    check_values,
    initial_position,
    key_shared,
    local_settings,
    native_settings,
    subscription_type,
)
from ._letter_publishing import DeadLetterProducers, warn_without_schema
from ._official import broker_error
from ._port import PROPERTY_BYTES, Schema, bytes_of
from ._settings import CONSUMER_SETTINGS, check_settings, refuse_unknown

__all__ = [
    "CONSUMER_SETTINGS",
    "PROPERTY_BYTES",
    "AnyPosition",
    "AnyType",
    "DeadLetterProducers",
    "DialectSettings",
    "InitialPosition",
    "Schema",
    "SubscriptionType",
    "broker_error",
    "bytes_of",
    "check_settings",
    "check_values",
    "initial_position",
    "key_shared",
    "local_settings",
    "native_settings",
    "refuse_unknown",
    "subscription_type",
    "warn_without_schema",
]
