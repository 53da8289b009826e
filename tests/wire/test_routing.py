"""Which partition a key goes to, and the options of producers."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_nack import InvalidArgumentError
from pulsar_nack.wire import Client, ProducerOptions
from pulsar_nack.wire._producer._options import ProducerSettings
from pulsar_nack.wire._producer._routing import PartitionRouter, java_string_hash, murmur3_hash


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0), ("a", 97), ("abc", 96354), ("order-17", 1234255109), ("polygenelubricants", 0), ("\U0001f600", 1772899)],
)
def test_java_string_hash(key: str, expected: int) -> None:
    """The hash equals that of java.lang.String without its sign, over UTF-16."""
    assert java_string_hash(key) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0),
        ("test", 0xBA6BD213 & 0x7FFFFFFF),
        ("Hello, world!", 0xC0363E43 & 0x7FFFFFFF),
        ("The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_hash(key: str, expected: int) -> None:
    """The hash has the published values of MurmurHash3 for 32 bits and seed 0, without the sign."""
    assert murmur3_hash(key) == expected


def test_a_single_partition_is_drawn_once() -> None:
    """All messages without a key go to a partition drawn at random; those with a key do not."""
    routing = PartitionRouter("single", "java_string", choose=lambda partitions: partitions - 1)
    assert [routing.partition(None, 4) for _ in range(3)] == [3, 3, 3]
    assert routing.partition("a", 4) == 97 % 4


def test_a_function_decides() -> None:
    """The function gets key and number of partitions; an invalid result is refused."""
    routing = PartitionRouter(lambda key, partitions: len(key or "") % (partitions + 1), "murmur3")
    assert routing.partition("abc", 4) == 3
    with pytest.raises(InvalidArgumentError, match="routing"):
        routing.partition("abcd", 4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"compression": "gzip"}, "compression"),
        ({"batch_by_key": True}, "batch_by_key"),
        ({"batching": True, "chunking": True}, "chunking"),
        ({"send_timeout": 0}, "send_timeout"),
        ({"batch_max_messages": 0}, "batch_max_messages"),
        ({"routing": "any"}, "routing"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], named: str) -> None:
    """A producer's wrong setting is refused by its name."""
    with pytest.raises(InvalidArgumentError, match=named):
        Client("pulsar://127.0.0.1:1").producer("t", **settings)


def test_all_settings_are_known_to_type_checkers() -> None:
    """The options of a producer equal the parameters of the client's method."""
    assert set(ProducerSettings.__annotations__) == set(ProducerOptions.model_fields)
