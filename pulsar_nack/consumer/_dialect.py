"""The keywords of subscribing and their values, which mean the same over each client.

Our names are those of the native client. The official client's names are accepted too: where a keyword has the same
meaning it is translated, and where a client cannot do it, it is refused with what to use in its place. Values are
accepted in the spelling of either client, also as a member of its enumerations, which are recognized by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from .._check import check_flag, check_integer, check_name, check_strings, suggest_name
from ..errors import InvalidArgumentError
from ._settings import CONSUMER_SETTINGS, ConsumerOptions

SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]
InitialPosition = Literal["latest", "earliest"]

_TYPES: Final = get_args(SubscriptionType)
_POSITIONS: Final = get_args(InitialPosition)
_HASHES: Final = 65_536
_MAX_QUEUED: Final = 1_000_000


AnyType: TypeAlias = SubscriptionType | str | Any
"""A type of subscription in any spelling; also a member of an enumeration, such as ``pulsar.ConsumerType.Shared``."""
AnyPosition: TypeAlias = InitialPosition | str | Any
"""An initial position in any spelling; also a member of an enumeration."""


@dataclass(frozen=True, slots=True)
class KeyShared:
    """How keys are divided among the consumers of a Key_Shared subscription.

    :param ranges: the hashes that this consumer takes, as (first, last), from 0 to 65 535; empty: the broker decides
    :param allow_out_of_order: keys may move to a new consumer before the old one has acknowledged their messages
    :raises InvalidArgumentError: ranges are invalid or overlap
    """

    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False

    def __post_init__(self) -> None:
        end = -1
        for first, last in sorted(_as_ranges(self.ranges)):
            if not end < first <= last < _HASHES:
                wanted = f"ranges of hashes from 0 to {_HASHES - 1} that do not overlap"
                raise InvalidArgumentError("ranges", self.ranges, wanted)
            end = last
        check_flag("allow_out_of_order", self.allow_out_of_order)


class DialectSettings(ConsumerOptions, total=False):
    """The settings of a consumer, and those of its subscription that both clients have, by the names of either."""

    consumer_name: str | None
    initial_position: AnyPosition
    receiver_queue_size: int
    properties: Mapping[str, str] | None
    key_shared: Any
    key_shared_policy: Any
    batch_index_ack: bool
    batch_index_ack_enabled: bool
    read_compacted: bool
    is_read_compacted: bool
    replicate_subscription_state: bool
    replicate_subscription_state_enabled: bool
    max_pending_chunked: int
    max_pending_chunked_message: int
    is_pattern_topic: bool


OFFICIAL_NAMES: Final = {
    "batch_index_ack": "batch_index_ack_enabled",
    "key_shared": "key_shared_policy",
    "max_pending_chunked": "max_pending_chunked_message",
    "read_compacted": "is_read_compacted",
    "replicate_subscription_state": "replicate_subscription_state_enabled",
}
"""The official client's names of settings that have another name here."""
_OUR_NAMES: Final = {official: ours for ours, official in OFFICIAL_NAMES.items()}


_Missing = Mapping[str, tuple[tuple[Any, ...], str]]
"""Settings that a client does not have: the values that are accepted without effect, and what to use in their place."""
_IN_NO_CLIENT: Final = {
    "negative_ack_redelivery_delay_ms": "nothing, as pulsar_nack redelivers: use backoff, in seconds, or config",
    "subscription_name": "nothing: the name is the argument 'subscription'",
}
_NOT_NATIVE: Final[_Missing] = {
    "schema": ((None,), "None: a message's data are bytes; client.schema() has the definition"),
    "max_total_receiver_queue_size_across_partitions": ((), "nothing: use the client's max_prefetched_bytes"),
    "unacked_messages_timeout_ms": ((None, 0), "None: use lease, in seconds; the native client has no such timeout"),
    "broker_consumer_stats_cache_time_ms": ((), "nothing: consumer.statistics() is never cached"),
    "crypto_key_reader": ((None,), "None: the native client does not decrypt; use pulsar_nack.subscribe"),
    "crypto_failure_action": ((), "nothing: the native client does not decrypt; use pulsar_nack.subscribe"),
    "auto_ack_oldest_chunked_message_on_queue_full": ((False,), "False: chunks go back to the broker"),
    "start_message_id_inclusive": ((True,), "True: seek always delivers the message that it names"),
    "batch_receive_policy": ((None,), "None: give the limits to consumer.batch_receive()"),
    "dead_letter_policy": ((None,), "None: use dead_letter=DeadLetterPolicy(...)"),
    "regex_subscription_mode": ((), "PersistentOnly: other topics' messages have no unique ids"),
}
_NOT_OFFICIAL: Final[_Missing] = {
    "priority_level": ((0,), "0: the official client has no levels; use pulsar_nack.connect"),
    "subscription_properties": (({},), "nothing: the official client has none; use pulsar_nack.connect"),
    "ack_group_ms": ((), "nothing: the official client has its own; use pulsar_nack.connect"),
    "max_chunked_bytes": ((), "nothing: the official client has no such bound; use pulsar_nack.connect"),
    "chunk_timeout": ((), "nothing: the official client has its own; use pulsar_nack.connect"),
    "durable_subscription": ((True,), "True: the official client has no other; use pulsar_nack.connect"),
    "create_topic": ((True,), "True: the official client leaves it to the broker; use pulsar_nack.connect"),
    "start_message_id": ((None,), "None: the official client has no such start; use pulsar_nack.connect"),
    "discovery_interval": ((), "nothing: the official client has its own; use pulsar_nack.connect"),
}
ALL_NAMES: Final = (*DialectSettings.__annotations__, *_IN_NO_CLIENT, *_NOT_NATIVE, *_NOT_OFFICIAL)
"""The names of all settings of either client."""


# --- values -----------------------------------------------------------------------------------------------------------


def subscription_type(value: object, field: str = "consumer_type") -> SubscriptionType:
    """Return a type of subscription in our spelling.

    :raises InvalidArgumentError: there is no such type
    """
    word = _word_of(value)
    found: SubscriptionType | None = next((each for each in _TYPES if word in {each, each.replace("_", "")}), None)
    if found is None:
        raise InvalidArgumentError(field, value, f"one of {', '.join(_TYPES)}, or a pulsar.ConsumerType")
    return found


def initial_position(value: object, field: str = "initial_position") -> InitialPosition:
    """Return an initial position in our spelling.

    :raises InvalidArgumentError: there is no such position
    """
    word = _word_of(value)
    found: InitialPosition | None = next((each for each in _POSITIONS if word == each), None)
    if found is None:
        raise InvalidArgumentError(field, value, "'latest' or 'earliest', or a pulsar.InitialPosition")
    return found


def key_shared(value: object, field: str = "key_shared") -> KeyShared | None:
    """Return how keys are divided, from our class or from the official client's.

    :raises InvalidArgumentError: neither
    """
    if value is None or isinstance(value, KeyShared):
        return value
    mode = getattr(value, "key_shared_mode", None)
    if isinstance(value, type) or mode is None:
        raise InvalidArgumentError(field, value, "a KeyShared, a pulsar.ConsumerKeySharedPolicy, or None")
    policy: Any = value
    ranges = tuple(map(tuple, policy.sticky_ranges)) if _word_of(mode) == "sticky" else ()
    return KeyShared(ranges, allow_out_of_order=policy.allow_out_of_order_delivery)


def _word_of(value: object) -> str | None:
    """Return a text, or the name of a member of an enumeration, in lower case with underscores."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    members = {name} if isinstance(value, str) else getattr(type(value), "__members__", ())
    return name.lower().replace("-", "_") if isinstance(name, str) and name in members else None


def _as_ranges(value: object) -> tuple[tuple[int, int], ...]:
    wanted = "a tuple of pairs of whole numbers"
    if not isinstance(value, tuple):
        raise InvalidArgumentError("ranges", value, wanted)
    for pair in value:
        if not isinstance(pair, tuple) or len(pair) != 2 or any(type(end) is not int for end in pair):
            raise InvalidArgumentError("ranges", value, wanted)
    return value


def check_values(kind: SubscriptionType, settings: Mapping[str, Any], field: str = "consumer_type") -> None:
    """Raise for a value that no client takes, or not with this type of subscription; settings have our names.

    :raises InvalidArgumentError: names the setting
    """
    for name, value in settings.items():
        match name:
            case "consumer_name" if value is not None:
                check_name(name, value)
            case "properties" if value is not None:
                check_strings(name, value)
            case "receiver_queue_size":
                check_integer(name, value, 0, _MAX_QUEUED)
            case "batch_index_ack" | "read_compacted" | "replicate_subscription_state" | "is_pattern_topic":
                check_flag(name, value)
    if settings.get("key_shared") is not None and kind != "key_shared":
        raise InvalidArgumentError("key_shared", settings["key_shared"], f"None, as {field} is not 'key_shared'")
    if settings.get("read_compacted", False) and kind not in {"exclusive", "failover"}:
        raise InvalidArgumentError(
            "read_compacted", settings["read_compacted"], "False, but on 'exclusive' or 'failover'"
        )


# --- names ------------------------------------------------------------------------------------------------------------


def native_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for the native client: by our names, and with our values.

    :raises InvalidArgumentError: names a setting that is given twice, or that this client does not have
    """
    ours = _by_our_names(settings)
    found = {name: value for name, value in ours.items() if not _is_missing(name, value, _NOT_NATIVE)}
    if found.get("properties", {}) is None:
        del found["properties"]
    return found


def official_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for the official client: by our names, and its own settings unchanged.

    :raises InvalidArgumentError: names a setting that is given twice, or that this client does not have
    """
    ours = _by_our_names(settings)
    if ours.get("dead_letter") is not None and ours.get("dead_letter_policy") is not None:
        wanted = "nothing beside dead_letter: two dead-letter policies would send each message twice"
        raise InvalidArgumentError("dead_letter_policy", ours["dead_letter_policy"], wanted)
    return {name: value for name, value in ours.items() if not _is_missing(name, value, _NOT_OFFICIAL)}


def local_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a local topic, by our names.

    :raises InvalidArgumentError: names a setting that is given twice, or that a local topic does not have
    """
    known = {*CONSUMER_SETTINGS, "batch_index_ack", "consumer_type"}
    found = _by_our_names(settings)
    for name, value in found.items():
        if name not in known:
            wanted = "nothing: a local topic has no such setting" if name in ALL_NAMES else suggest_name(name, [*known])
            raise InvalidArgumentError(name, value, wanted)
    return found


def _by_our_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _IN_NO_CLIENT:
            raise InvalidArgumentError(name, value, _IN_NO_CLIENT[name])
        ours = _OUR_NAMES.get(name, name)
        if ours in found:
            raise InvalidArgumentError(name, value, f"nothing beside {OFFICIAL_NAMES[ours] if name == ours else ours}")
        match ours:
            case "key_shared":
                value = key_shared(value, name)
            case "initial_position":
                value = initial_position(value)
        found[ours] = value
    return found


def _is_missing(name: str, value: object, missing: _Missing) -> bool:
    """Return whether a client does not have a setting; raise unless leaving out its value changes nothing."""
    if name not in missing:
        return False
    accepted, use = missing[name]
    is_same = any(type(value) is type(each) and value == each for each in accepted)
    if not is_same and not (name == "regex_subscription_mode" and _word_of(value) == "persistentonly"):
        raise InvalidArgumentError(name, value, use)
    return True
