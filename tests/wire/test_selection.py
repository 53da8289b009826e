"""Which topics and partitions a consumer reads."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from pulsar_nack import BrokerError, InvalidArgumentError
from pulsar_nack.wire._consumer._topic_discovery import PatternSelection, name_of, selection_of
from tests.for_each import for_each
from tests.wire.hostile import blocked
from tests.wire.using import BASE


class FakeLookup:
    """Stands for a lookup: topics of one namespace with their numbers of partitions, 0 for none."""

    def __init__(self, *, fails: bool = False, **topics: int) -> None:
        self._topics = {f"{BASE}{name}": count for name, count in topics.items()}
        self._fails = fails

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        if self._fails:
            raise BrokerError("no")
        return self._topics.get(topic, 0)

    async def topics(self, namespace: str) -> list[str]:
        if self._fails:
            raise BrokerError("no")
        return [
            member
            for name, count in self._topics.items()
            if namespace == "public/default"
            for member in ([f"{name}-partition-{number}" for number in range(count)] or [name])
        ]


def lookup_of(**topics: Any) -> Any:
    """Return a lookup with these topics and numbers of partitions."""
    return FakeLookup(**topics)


LOOKUP = lookup_of(plain=0, parted=2, other=0, __change_events=0)


async def test_one_topic_without_partitions() -> None:
    """A short name becomes a full one; a topic without partitions stays one."""
    selection = selection_of("plain")
    assert selection.only == selection.label == f"{BASE}plain"
    members = await selection.members(LOOKUP)
    assert members == {f"{BASE}plain": -1}
    assert not selection.may_grow(members)


async def test_a_topic_with_partitions() -> None:
    """A partitioned topic is its partitions, and may get more."""
    selection = selection_of(f"{BASE}parted")
    members = await selection.members(LOOKUP)
    assert members == {f"{BASE}parted-partition-0": 0, f"{BASE}parted-partition-1": 1}
    assert selection.may_grow(members)


async def test_one_partition() -> None:
    """The name of a partition is that partition, with its number, whatever the broker answers."""
    selection = selection_of("parted-partition-1")
    members = await selection.members(lookup_of(**{"parted-partition-1": 3}))
    assert members == {f"{BASE}parted-partition-1": 1}
    assert not selection.may_grow(members)


async def test_a_list_of_topics() -> None:
    """A list is all its topics and partitions, each once; none of them is the only one."""
    selection = selection_of(["plain", "parted", f"{BASE}plain"])
    assert selection.only is None
    members = await selection.members(LOOKUP)
    assert list(members) == [f"{BASE}plain", f"{BASE}parted-partition-0", f"{BASE}parted-partition-1"]
    assert selection.may_grow(members)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("p.*", [f"{BASE}plain", f"{BASE}parted-partition-0", f"{BASE}parted-partition-1"]),
        (f"{BASE}o.*", [f"{BASE}other"]),
        ("parted|other", [f"{BASE}other", f"{BASE}parted-partition-0", f"{BASE}parted-partition-1"]),
        ("lai", []),
        (".*other|.*events", [f"{BASE}other"]),
        ("persistent://other/space/.*", []),
    ],
)
async def test_patterns(pattern: str, found: list[str]) -> None:
    """A pattern matches full names of topics in its namespace, not those of partitions, and may always find more."""
    selection = selection_of(re.compile(pattern))
    members = await selection.members(LOOKUP)
    assert list(members) == found
    assert selection.only is None
    assert selection.may_grow(members)


ORDERS = lookup_of(**{"x-1": 0, "X-2": 0, "y-1": 0, "ax-1": 0})


@for_each(
    ("pattern", "found"),
    [
        *(
            (f"{start}{beginning}x-.*", ["x-1"])
            for start in ("", "^", r"\A")
            for beginning in ("", "public/default/", BASE)
        ),
        *((f"(?i){start}{BASE}x-.*", ["x-1", "X-2"]) for start in ("", "^")),
        ("(?i)x-.*$", ["x-1", "X-2"]),
        (re.compile("x-.*", re.IGNORECASE), ["x-1", "X-2"]),
        (re.compile("x- .*  # those with x", re.VERBOSE), ["x-1"]),
        (re.compile(f"{BASE} x- .*  # those with x", re.VERBOSE), ["x-1"]),
        ("(?x) x - .*", ["x-1"]),
        ("(?s-i:x)-.*", ["x-1"]),
        ("^x-.*|^y-.*", ["x-1", "y-1"]),
        (f"{BASE}x-.*|^{BASE}y-.*", ["x-1", "y-1"]),
        ("public/default/(x|y)-.*", ["x-1", "y-1"]),
        (r"(?P<who>.)-(?P<n>\d)(?<=1)", ["x-1", "y-1"]),
        ("[^/]+x-[^|]", ["ax-1"]),
        ("(?<![a-z])x-.*", ["x-1"]),
        ("", []),
    ],
)
async def test_patterns_mean_what_they_say(pattern: Any, found: list[str]) -> None:
    """O18: with namespace or domain or without, anchored, with flags in the text or as an argument."""
    selection = selection_of(re.compile(pattern))
    assert list(await selection.members(ORDERS)) == [BASE + name for name in found]
    assert isinstance(selection, PatternSelection)
    assert [selection.matches(BASE + name) for name in found] == [True] * len(found)


async def test_a_pattern_for_many_topics() -> None:
    """Other tasks run while 40 000 names are matched."""
    many = lookup_of(**{f"other-{number}": 0 for number in range(40_000)}, orders=2)
    with blocked() as turns:
        members = await asyncio.create_task(selection_of(re.compile("orders")).members(many))
    assert list(members) == [f"{BASE}orders-partition-{number}" for number in range(2)]
    turns.check()


async def test_the_namespace_of_a_pattern() -> None:
    """O18: characters of a name may be written as they are, or with a backslash, as re.escape does."""
    for text in ("my-tenant/my.space/x.*", r"^my\-tenant/my\.space/x.*", r"persistent://my\-tenant/my\.space/x.*"):
        selection = selection_of(re.compile(text))
        assert isinstance(selection, PatternSelection)
        assert selection.namespace == "my-tenant/my.space"
        assert selection.matches("persistent://my-tenant/my.space/x1")


@pytest.mark.parametrize(
    "topic",
    [
        re.compile("persistent://.*/default/x"),
        re.compile("public/.*/x"),
        re.compile("default/x"),
        re.compile("public/default/x|y"),
        re.compile("public/default/x|public/other/y"),
        re.compile("(public/default/x|public/default/y)"),
        re.compile("a/b/c/d"),
        "",
        [],
        [""],
        5,
        None,
        re.compile(b"x"),
        re.compile("http://x/.*"),
        "a/b",
        "non-persistent://a/b/c",
        re.compile("non-persistent://a/b/.*"),
        "caf\udc80",
    ],
)
def test_nonsense_is_refused(topic: Any) -> None:
    """O18: invalid names, lists and patterns of several namespaces are refused by name."""
    with pytest.raises(InvalidArgumentError, match="topic"):
        selection_of(topic)


@pytest.mark.parametrize("topic", ["plain", ["plain", "other"], re.compile(".*")])
async def test_errors_are_plain(topic: Any) -> None:
    """A broker's error is raised as it is, not in a group of errors."""
    with pytest.raises(BrokerError, match=r"^no$"):
        await selection_of(topic).members(lookup_of(plain=0, fails=True))


def test_names_of_partitions() -> None:
    """An id's topic and partition make the full name, also where the topic's name has the partition already."""
    assert name_of("t", -1) == f"{BASE}t"
    assert name_of(f"{BASE}t", 2) == name_of("t-partition-2", 2) == f"{BASE}t-partition-2"
