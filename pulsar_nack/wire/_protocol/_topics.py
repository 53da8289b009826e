"""Names of topics, partitions and namespaces; short names are completed."""

from __future__ import annotations

import re
from typing import Final

from ..._topic_pattern import full_name
from ...errors import InvalidArgumentError

_DOMAINS: Final = ("persistent", "non-persistent")
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]*)", re.DOTALL)
_EXPECTED: Final = "a topic as 'name', 'tenant/namespace/name' or 'persistent://tenant/namespace/name'"


def split_topic(name: str) -> tuple[str, str, str]:
    """Return the domain, the namespace and the last part of a name; a short one is in ``public/default``.

    The namespace is ``tenant/namespace``, or ``tenant/cluster/namespace`` in old names.

    :raises InvalidArgumentError: not a name of a topic
    """
    domain, _, path = full_name(_text("topic", name, _EXPECTED)).partition("://")
    parts = path.split("/")
    if domain not in _DOMAINS or len(parts) not in {3, 4} or not all(parts):
        raise InvalidArgumentError("topic", name, _EXPECTED)
    return domain, "/".join(parts[:-1]), parts[-1]


def normalize(name: str) -> str:
    """Return the full name of a topic from a user: ``orders`` is ``persistent://public/default/orders``.

    :raises InvalidArgumentError: not a name of a topic, or one with spaces or invisible characters
    """
    split_topic(name)
    whole = full_name(name)
    if any(letter.isspace() or not letter.isprintable() for letter in whole):
        raise InvalidArgumentError("topic", name, f"no spaces or control characters: {_EXPECTED}")
    return whole


def partition_name(topic: str, partition: int) -> str:
    """Return the name of one partition of a topic, counted from 0."""
    return f"{topic}-partition-{partition}"


def split_partition(topic: str) -> tuple[str, int]:
    """Return the partitioned topic and the index of a partition's name; other names are returned with -1."""
    found = _PARTITION.fullmatch(topic)
    return (topic, -1) if found is None else (found[1], int(found[2]))


def normalize_namespace(name: str) -> str:
    """Return ``tenant/namespace``; a short name is in ``public``.

    :raises InvalidArgumentError: not a name of a namespace
    """
    expected = "a namespace as 'name' or 'tenant/name'"
    parts = _text("namespace", name, expected).split("/")
    if len(parts) not in {1, 2, 3} or not all(parts) or ":" in name:
        raise InvalidArgumentError("namespace", name, expected)
    return name if len(parts) > 1 else f"public/{name}"


def _text(field: str, value: object, expected: str) -> str:
    if (
        not isinstance(value, str)
        or not value
        or any(ord(letter) < 32 or "\ud800" <= letter <= "\udfff" for letter in value)
    ):
        raise InvalidArgumentError(field, value, expected)
    return value
