"""The words of the code and the docs: summaries that stand alone, and no phrase that a reader has to translate."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
ALONE = re.compile(r"(Do so|Does so|So does|The same\b|Have it|That of|Those of|Likewise|Also\b|And\b|But\b|As above)")
"""What only makes sense below another line begins like this."""
RIGHT = {"mates"}
"""Phrases that are right: the trace's reason ``busy batch mates``."""


def summaries() -> Iterator[tuple[str, str]]:
    """Yield where each docstring of the package stands, and its first line."""
    for path in sorted((HOME / "pulsar_nack").rglob("*.py")):
        if path.stem.endswith("_pb2"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    line = getattr(node, "lineno", 1)
                    yield f"{path.relative_to(HOME)}:{line}", text.splitlines()[0]


@pytest.mark.slow
def test_summaries_stand_alone() -> None:
    """A docstring's first line is understood without the line above it."""
    assert [f"{place}: {text}" for place, text in summaries() if ALONE.match(text)] == []


@pytest.mark.slow
def test_no_phrase_to_translate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither prose in code and tests nor the docs have a phrase of the list in ``benchmarks/house.py``."""
    monkeypatch.setattr(sys, "path", [str(HOME / "benchmarks"), *sys.path])
    found = runpy.run_path(str(HOME / "benchmarks" / "house.py"))["look"]()
    phrases = found.phrases_in_code + found.phrases_in_docs + found.phrases_in_tests
    assert [each for each in phrases if each.rpartition(": ")[2].lower() not in RIGHT] == []


def test_the_glossary_is_short() -> None:
    """At most sixty words, one line each."""
    text = (HOME / "docs" / "contributing" / "glossary.md").read_text()
    words = re.findall(r"^\| (?!word |---)(.+?) \| (.+) \|$", text, re.MULTILINE)
    assert 30 < len(words) <= 60
    assert all(len(meaning) <= 110 for _, meaning in words)
