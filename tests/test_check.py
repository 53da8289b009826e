"""The common checks of arguments."""

from __future__ import annotations

import pytest

from pulsar_nack import InvalidArgumentError
from pulsar_nack._check import INT64_MAX, check_integer, check_one_of
from tests.for_each import for_each


@for_each(("value", "highest"), [(0, None), (7, 7), (INT64_MAX, None), (INT64_MAX, INT64_MAX)])
def test_integers_within_bounds_are_returned(value: int, highest: int | None) -> None:
    """Both bounds are good, and without a highest one every larger integer is."""
    assert check_integer("size", value, 0, highest) == value


@for_each("value", [-1, 11, True, 1.0, "1", None])
def test_other_values_are_no_integers_within_bounds(value: object) -> None:
    """A bool, a float, text and an integer out of bounds are refused, with the bounds."""
    with pytest.raises(InvalidArgumentError, match=r"^size: expected an integer from 0 to 10, got "):
        check_integer("size", value, 0, 10)
    if value != 11:
        with pytest.raises(InvalidArgumentError, match=r"^size: expected an integer of at least 0, got "):
            check_integer("size", value, 0)


@for_each("value", ["c", "", 1, None, ["a"]])
def test_values_that_are_no_choice_are_refused(value: object) -> None:
    """The error names all choices."""
    check_one_of("mode", "a", ("a", "b"))
    with pytest.raises(InvalidArgumentError, match=r"^mode: expected one of a, b, got "):
        check_one_of("mode", value, ("a", "b"))
