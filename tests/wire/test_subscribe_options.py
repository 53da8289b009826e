"""The options of a subscription: which are accepted, which are refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_nack import InvalidArgumentError, MessageId
from pulsar_nack.consumer import KeyShared
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
from tests.for_each import for_each


def test_only_a_name_is_needed() -> None:
    """A subscription's name is enough: Shared, from the latest message on, with batch index acknowledgement."""
    options = SubscribeOptions("orders")
    assert (options.type, options.initial_position, options.batch_index_ack) == ("shared", "latest", True)
    assert not options.only_one_gets_messages


@for_each(
    ("name", "value"),
    [
        ("subscription", ""),
        ("subscription", None),
        ("consumer_name", ""),
        ("consumer_name", "half of a pair \ud800"),
        ("properties", {"a": "\udfff"}),
        ("type", "sharded"),
        ("initial_position", "middle"),
        ("priority_level", -1),
        ("properties", {"a": 1}),
        ("subscription_properties", ["a"]),
        ("receiver_queue_size", -1),
        ("receiver_queue_size", True),
        ("ack_group_ms", -1),
        ("max_pending_chunked", 0),
        ("max_chunked_bytes", 0),
        ("chunk_timeout", 0),
        ("batch_index_ack", 1),
        ("durable", None),
        ("create_topic", "yes"),
        ("key_shared", "sticky"),
        ("key_shared", KeyShared()),
        ("start_message_id", MessageId(1, 2)),
        ("read_compacted", True),
    ],
)
def test_bad_options_are_named(name: str, value: Any) -> None:
    """An invalid option is refused by name, before anything happens."""
    with pytest.raises(InvalidArgumentError) as caught:
        SubscribeOptions(**{"subscription": "orders", name: value})
    assert caught.value.field == name


def test_options_that_need_others() -> None:
    """Options that need certain other options are accepted with those."""
    shares = KeyShared(ranges=((0, 100), (200, 65_535)))
    assert SubscribeOptions("orders", type="key_shared", key_shared=shares).key_shared is shares
    start = MessageId(1, 2)
    reader = SubscribeOptions("r", type="exclusive", durable=False, start_message_id=start, read_compacted=True)
    assert reader.start_message_id is start
    assert reader.only_one_gets_messages


@pytest.mark.parametrize("ranges", [((5, 4),), ((0, 10), (10, 20)), ((0, 65_536),), ((-1, 3),), [(0, 1)], ((0, "1"),)])
def test_ranges_of_hashes(ranges: Any) -> None:
    """Invalid or overlapping ranges are refused."""
    with pytest.raises(InvalidArgumentError, match="ranges"):
        KeyShared(ranges=ranges)
