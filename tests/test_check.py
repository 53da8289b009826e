"""The common checks of arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsar_nack import InvalidArgumentError
from pulsar_nack._check import INT64_MAX, as_folder, check_integer, check_name, check_one_of, check_strings, check_text
from tests.for_each import for_each


@for_each(("value", "highest"), [(0, None), (7, 7), (INT64_MAX, None), (INT64_MAX, INT64_MAX)])
def test_integers_within_bounds_are_returned(value: int, highest: int | None) -> None:
    """Both bounds are valid, and without a maximum every larger integer is."""
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


@for_each("value", ["\ud800", 1, None, b"a"])
def test_values_that_are_no_text_are_refused(value: object) -> None:
    """Only a str that UTF-8 can encode is text; the limit counts characters, and a name has at least one."""
    check_text("key", "")
    check_text("key", "é" * 3, 3)
    assert check_name("name", "é") == "é"
    for refused in (value, ""):
        with pytest.raises(InvalidArgumentError, match=r"^name: expected a topic, got "):
            check_name("name", refused, "a topic")
    with pytest.raises(InvalidArgumentError, match=r"^key: expected a str without lone surrogates, got "):
        check_text("key", value)
    with pytest.raises(InvalidArgumentError, match=r"^key: expected text, at most 3 characters, got "):
        check_text("key", "four", 3)
    check_strings("properties", {"a": "é"})
    for properties in ({"a": value}, {value: "a"}, value, [("a", "b")]):
        with pytest.raises(InvalidArgumentError, match=r"^properties: expected a mapping from str to str, got "):
            check_strings("properties", properties)


@for_each("value", ["a", Path("a/b"), "é", os.fsdecode(b"\xff")])
def test_folders(value: str | Path) -> None:
    """Any path that the system can have is accepted, also one that is not UTF-8."""
    assert as_folder("folder", value) == Path(value)


@for_each("value", ["", "a\0b", "\ud800", b"a", None, 1])
def test_what_is_no_folder(value: object) -> None:
    """A path that no file can have is refused here; the system would raise a ValueError."""
    with pytest.raises(InvalidArgumentError, match=r"^folder: expected the path of a folder, got "):
        as_folder("folder", value)
