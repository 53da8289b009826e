"""The ledgers of a topic as a cursor sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor._ledgers import Ledgers, MappingLedgers, as_ledgers, entries_after, ledger_after
from tests.for_each import for_each

CHANGES = st.lists(st.tuples(st.sampled_from(["set", "delete", "ask"]), st.integers(0, 12), st.integers(0, 3)))


class OneWay(Mapping[int, int]):
    """A mapping that cannot be iterated backwards."""

    def __init__(self, items: dict[int, int]) -> None:
        self.items_of = items

    def __getitem__(self, key: int) -> int:
        return self.items_of[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self.items_of)

    def __len__(self) -> int:
        return len(self.items_of)


@given(CHANGES, st.booleans())
def test_follows_a_mapping(changes: list[tuple[str, int, int]], is_one_way: bool) -> None:
    """Ledgers that are added, in any order, and deleted are visible at once; both neighbours are found."""
    mapping: dict[int, int] = {}
    ledgers = MappingLedgers(OneWay(mapping) if is_one_way else mapping)
    for change, ledger, entries in changes:
        if change == "set":
            mapping[ledger] = entries
        elif change == "delete":
            mapping.pop(ledger, None)
        above = [each for each in sorted(mapping) if each > ledger]
        assert ledgers.next_ledger(ledger) == (above[0] if above else None)
        assert ledgers.previous_ledger(ledger) == max((each for each in mapping if each < ledger), default=None)
        assert ledgers.entries(ledger) == mapping.get(ledger)
        assert ledger_after(ledgers, ledger) == next((each for each in above if mapping[each]), None)
        expected = sum(mapping[each] for each in above) + max(0, mapping.get(ledger, 0) - entries - 1)
        assert entries_after(ledgers, ledger, entries) == expected


class Topic:
    """An object that answers for its ledgers, as a local topic does."""

    def __init__(self, ledgers: dict[int, int]) -> None:
        self.ledgers = ledgers

    def entries(self, ledger: int) -> int | None:
        """Return how many entries the ledger has."""
        return self.ledgers.get(ledger)

    def next_ledger(self, ledger: int) -> int | None:
        """Return the next higher ledger."""
        return min((each for each in self.ledgers if each > ledger), default=None)

    def previous_ledger(self, ledger: int) -> int | None:
        """Return the next lower ledger."""
        return max((each for each in self.ledgers if each < ledger), default=None)


def test_an_object_answers_as_well() -> None:
    """An object with the three methods is used as it is, and called each time."""
    topic = Topic({1: 2, 3: 1})
    assert isinstance(topic, Ledgers)
    assert as_ledgers(topic) is topic
    state = AckState(topic, (1, -1))
    state.acknowledge([(1, 0), (1, 1)])
    topic.ledgers[3] = 4
    state.acknowledge([(3, 0), (3, 3)])
    assert (state.mark_delete_position, state.backlog) == ((3, 0), 2)


@for_each("wrong", [{1: True}, {True: 1}, {2**63: 5}, {1: 2**63}, {-1: 5}, {1: -1}, {1: 1.0}, {"1": 1}, {1: None}])
def test_refused_ledgers(wrong: dict[Any, Any]) -> None:
    """An invalid ledger or number of entries is refused with the field and the pair."""
    with pytest.raises(InvalidArgumentError, match="ledgers: expected ledger ids and numbers of entries") as error:
        as_ledgers({0: 3, **wrong})
    assert (error.value.field, error.value.value) == ("ledgers", wrong)
    assert as_ledgers({2**63 - 1: 2**63 - 1}).entries(2**63 - 1) == 2**63 - 1
