"""``tests/cases.md`` names the tests of each case, and these tests name the case."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
NUMBERS: Final = {
    "N": range(1, 38),
    "D": range(1, 35),
    "U": range(1, 52),
    "K": [*range(1, 18), *range(20, 35), *range(40, 49), *range(50, 53)],
    "O": range(1, 59),
    "S": range(1, 16),
}
"""All cases of each series; a letter behind a number, as in N13a, is a further case of it."""

TEST: Final = re.compile(r'^(?:async )?def (test_\w+)\([^()]*\) -> None:\n    """([^:\n]*):', re.MULTILINE)
"""A test's name, and what its docstring says before the first colon (to parse all files would take a second)."""

CASES: Final = re.compile(r"[NDUKOS]\d+[a-z]?(?:, [NDUKOS]\d+[a-z]?)*")
ROW: Final = re.compile(r"^\| ([A-Z]\d+[a-z]?) \| (.+) \| (.+) \|$", re.MULTILINE)


def by_case() -> dict[str, list[str]]:
    """Return the tests whose docstrings begin with a case's number."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, head in TEST.findall(path.read_text("utf-8")):
            for case in head.split(", ") if CASES.fullmatch(head) else ():
                found.setdefault(case, []).append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return found


def test_each_case_is_held_by_the_tests_that_its_row_names() -> None:
    """Each named test exists and begins with the case's number, and no test begins with a number without a row."""
    held = by_case()
    rows = {case: named for case, _, named in ROW.findall((ROOT / "tests" / "cases.md").read_text("utf-8"))}
    wrong = [
        f"{case} has no row in tests/cases.md; {' and '.join(held[case])} name it"
        for case in sorted(held.keys() - rows)
    ]
    for case, cell in rows.items():
        named, now = re.findall(r"`(.+?)`", cell), held.get(case, [])
        wrong += [
            f"{case} names {test}: there is no such test, or its docstring does not begin with {case}"
            for test in named
            if test not in now
        ]
        if not named and (now or cell != "not yet"):
            wrong.append(f"{case} names no test, and is not just 'not yet'")
        if any(line.startswith(f"{case} ") for line in wrong):
            wrong.append(f"    tests that begin with {case}: {', '.join(now) or 'none'}")
    assert not wrong, "\n".join(["tests/cases.md and the tests differ:", *wrong])


def test_rows_are_complete_and_in_order() -> None:
    """Every case has one row, in order, and each row belongs to a case."""
    cases = [case for case, _, _ in ROW.findall((ROOT / "tests" / "cases.md").read_text("utf-8"))]
    numbered = list(dict.fromkeys(case.rstrip("ab") for case in cases))
    assert numbered == [*chain.from_iterable([f"{series}{number}" for number in NUMBERS[series]] for series in NUMBERS)]
    assert len(cases) == len(set(cases))
    assert {case for case in cases if case[-1].isalpha()} == {"N13a", "N13b", "N17a", "O3b"}
