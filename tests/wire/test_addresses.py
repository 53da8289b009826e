"""Service URLs and the names of topics."""

from __future__ import annotations

import pytest

from pulsar_nack.errors import InvalidArgumentError
from pulsar_nack.wire._connection._address import Address, parse_service_url
from pulsar_nack.wire._protocol._topics import (
    normalize,
    normalize_namespace,
    partition_name,
    split_partition,
    split_topic,
)
from tests.for_each import for_each


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://localhost:6650", [Address("localhost", 6650)]),
        ("pulsar://localhost", [Address("localhost", 6650)]),
        ("pulsar+ssl://a.example.com", [Address("a.example.com", 6651, is_secure=True)]),
        ("pulsar://a:1,b:2, c/", [Address("a", 1), Address("b", 2), Address("c", 6650)]),
        ("pulsar://a:1,a:1", [Address("a", 1)]),
        ("pulsar://[::1]:6650,[fe80::1]", [Address("::1", 6650), Address("fe80::1", 6650)]),
        ("pulsar://10.0.0.1:65535", [Address("10.0.0.1", 65535)]),
    ],
)
def test_service_urls(url: str, expected: list[Address]) -> None:
    """One or several addresses are read in order, with the default port where none is given."""
    assert list(parse_service_url(url)) == expected


@pytest.mark.parametrize("address", [Address("h", 1), Address("::1", 6651, is_secure=True), Address("a.b-c", 6650)])
def test_addresses_go_round(address: Address) -> None:
    """An address is equal after it was written as a URL and read."""
    assert Address.parse(address.url) == address


@for_each(
    ("url", "problem"),
    [
        ("http://localhost:8080", "not its admin address"),
        ("https://localhost:8443", "not its admin address"),
        ("localhost:6650", "pulsar://host:6650"),
        ("", "pulsar://host:6650"),
        ("pulsar://", "pulsar://host:6650"),
        ("pulsar:///", "pulsar://host:6650"),
        ("kafka://h:9092", "pulsar://host:6650"),
        ("pulsar://h:0", "ports from 1 to 65535, not 0"),
        ("pulsar://h:70000", "ports from 1 to 65535, not 70000"),
        ("pulsar://h:x", "not 'h:x'"),
        ("pulsar://a,,b", "not ''"),
        ("pulsar://user@h", "no user or password"),
        ("pulsar://h:6650/tenant", "not 'h:6650/tenant'"),
        ("pulsar://::1:6650", "not '::1:6650'"),
        (None, "pulsar://host:6650"),
        (" pulsar://h:6650", "no spaces around it"),
        ("pulsar://h:6650\n", "no spaces around it"),
    ],
)
def test_wrong_service_urls(url: str, problem: str) -> None:
    """Other text than a service URL is refused with the wrong part."""
    with pytest.raises(InvalidArgumentError) as caught:
        parse_service_url(url)
    assert caught.value.field == "url"
    assert problem in str(caught.value)


def test_one_address_is_one() -> None:
    """A URL of several addresses is not one address."""
    with pytest.raises(InvalidArgumentError, match="one address"):
        Address.parse("pulsar://a,b")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("orders", "persistent://public/default/orders"),
        ("acme/shop/orders", "persistent://acme/shop/orders"),
        ("persistent://acme/shop/orders", "persistent://acme/shop/orders"),
        ("non-persistent://acme/shop/orders", "non-persistent://acme/shop/orders"),
        ("persistent://acme/east/shop/orders", "persistent://acme/east/shop/orders"),
        ("orders-partition-3", "persistent://public/default/orders-partition-3"),
        ("größe", "persistent://public/default/größe"),
    ],
)
def test_topics_are_made_whole(name: str, whole: str) -> None:
    """Short names are in public/default; full names stay as they are."""
    assert normalize(name) == whole
    assert normalize(whole) == whole


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a/b/c/d", "a//c", "kafka://a/b/c", "persistent://a/b", "persistent://a/b/c/d/e", "a\nb", None, 3],
)
def test_wrong_topics(name: str) -> None:
    """Invalid topic names are refused."""
    with pytest.raises(InvalidArgumentError, match="topic"):
        normalize(name)


def test_partitions_have_names() -> None:
    """A partition is a topic whose name contains that of the partitioned topic and its index."""
    topic = normalize("orders")
    assert partition_name(topic, 12) == f"{topic}-partition-12"
    assert split_partition(partition_name(topic, 12)) == (topic, 12)
    assert split_partition(topic) == (topic, -1)
    assert split_partition(f"{topic}-partition-x") == (f"{topic}-partition-x", -1)
    assert split_partition(f"{topic}-partition-01") == (f"{topic}-partition-01", -1)


def test_namespaces() -> None:
    """A topic's namespace has its tenant; a short one is in public."""
    assert split_topic("orders")[1] == "public/default"
    assert split_topic("persistent://acme/shop/orders")[1] == "acme/shop"
    assert normalize_namespace("shop") == "public/shop"
    assert normalize_namespace("acme/shop") == "acme/shop"
    for wrong in ("", "a//b", "persistent://a/b", "a/b/c/d"):
        with pytest.raises(InvalidArgumentError, match="namespace"):
            normalize_namespace(wrong)
