"""Figures of the code: lines, files, classes, imports across packages, import cycles, and phrases to avoid.

Run ``python benchmarks/house.py``. Files are read and parsed, nothing is imported or run. ``--list`` shows the places,
``--json`` prints the figures for programs, ``--save`` stores the table as ``results/house.md``. The figures are hints,
not goals: a small file can be right, and so can a long one.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from _report import Report

HOME = Path(__file__).parent.parent
PACKAGE = HOME / "pulsar_nack"
LONG, SHORT, MANY_METHODS = 400, 60, 30
PHRASES = (
    "all the same", "anew", "as ever", "by itself", "by themselves", "do so", "have it done", "have it for",
    "in work", "is looked", "is none", "let in", "likewise", "mate", "mates", "of her own", "of his own",
    "of its own", "of one's own", "of their own", "parted", "show again", "shown again", "so many", "so much",
    "tell", "tells", "the same for", "told", "what there is", "whoever",
)  # fmt: skip
"""Phrases that readers have to translate; write short, active sentences instead."""
_PHRASE = re.compile(rf"\b({'|'.join(f'[{each[0].upper()}{each[0]}]{each[1:]}' for each in PHRASES)})\b")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class House:
    """The figures; lists contain the places."""

    lines: int = 0
    files: int = 0
    classes: int = 0
    protocols: list[str] = field(default_factory=list)
    long_files: list[str] = field(default_factory=list)
    short_files: list[str] = field(default_factory=list)
    large_classes: list[str] = field(default_factory=list)
    private_imports: list[str] = field(default_factory=list)
    circles: list[str] = field(default_factory=list)
    names: int = 0
    phrases_in_code: list[str] = field(default_factory=list)
    phrases_in_docs: list[str] = field(default_factory=list)
    phrases_in_tests: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        """Return the figures by name."""
        return {
            "lines": self.lines,
            "files": self.files,
            "classes": self.classes,
            "protocols": len(self.protocols),
            f"files over {LONG} lines": len(self.long_files),
            f"files under {SHORT} lines": len(self.short_files),
            f"classes of more than {MANY_METHODS} methods": len(self.large_classes),
            "imports of another package's private names": len(self.private_imports),
            "import cycles between files": len(self.circles),
            "names in pulsar_nack.__all__": self.names,
            "phrases to avoid, in code": len(self.phrases_in_code),
            "phrases to avoid, in docs": len(self.phrases_in_docs),
            "phrases to avoid, in tests, benchmarks and examples": len(self.phrases_in_tests),
        }

    def places(self) -> dict[str, list[str]]:
        """Return the places by kind."""
        return {name.replace("_", " "): places for name, places in vars(self).items() if isinstance(places, list)}


def look() -> House:
    """Count what is in the package and its docs."""
    house = House()
    imports: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.stem.endswith("_pb2"):
            _read_module(path, house, imports)
    house.circles = list(_circles(imports))
    pages = [HOME / "README.md", HOME / "CHANGELOG.md", *sorted((HOME / "docs").rglob("*.md"))]
    for page in pages:
        if "_build" not in page.parts:
            house.phrases_in_docs += _phrases(page.relative_to(HOME).as_posix(), page.read_text())
    for folder in ("tests", "benchmarks", "examples"):
        for path in sorted((HOME / folder).rglob("*.py")):
            source = path.read_text()
            house.phrases_in_tests += _phrases(path.relative_to(HOME).as_posix(), _prose(source, ast.parse(source)))
    return house


def _read_module(path: Path, house: House, imports: dict[str, set[str]]) -> None:
    source, name = path.read_text(), path.relative_to(HOME).as_posix()
    tree = ast.parse(source)
    lines = source.count("\n")
    house.lines += lines
    house.files += 1
    if lines > LONG:
        house.long_files.append(f"{name} {lines}")
    if lines < SHORT and path.name not in {"__init__.py", "__main__.py"}:
        house.short_files.append(f"{name} {lines}")
    imports[name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            house.classes += 1
            if any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases):  # not one of asyncio
                house.protocols.append(f"{name} {node.name}")
            if len(methods) > MANY_METHODS:
                house.large_classes.append(f"{name} {node.name} {len(methods)}")
        elif isinstance(node, ast.ImportFrom) and node.level:
            target = _target(path, node)
            imports[name].add(target.relative_to(HOME).as_posix())
            if _is_private_elsewhere(path, target, node):
                house.private_imports.append(f"{name} -> {target.relative_to(HOME).as_posix()}")
    house.phrases_in_code += _phrases(name, _prose(source, tree))
    if path == PACKAGE / "__init__.py":
        listed = re.search(r"__all__ = \[(.*?)\]", source, re.DOTALL)
        house.names = listed[1].count(",") if listed else 0


def _target(path: Path, node: ast.ImportFrom) -> Path:
    """Return the file that an import refers to."""
    folder = path.parents[node.level - 1]
    module = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
    return module.with_suffix(".py") if module.with_suffix(".py").exists() else module / "__init__.py"


def _is_private_elsewhere(path: Path, target: Path, node: ast.ImportFrom) -> bool:
    """Return whether an import uses a private module or name of another package of ``pulsar_nack``."""
    own, other = path.relative_to(PACKAGE).parts, target.relative_to(PACKAGE).parts
    if len(own) < 2 or len(other) < 2 or own[0] == other[0]:
        return False
    inside = [part for part in other[1:] if part != "__init__.py"]
    return any(part.startswith("_") for part in inside) or any(each.name.startswith("_") for each in node.names)


def _prose(source: str, tree: ast.Module) -> str:
    """Return the comments and docstrings of a file."""
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | Definition)]
    return "\n".join([*re.findall(r"#.*", source), *(ast.get_docstring(node) or "" for node in documented)])


def _phrases(name: str, text: str) -> Iterator[str]:
    return (f"{name}: {found[0]}" for found in _PHRASE.finditer(text))


def _circles(imports: dict[str, set[str]]) -> Iterator[str]:
    """Yield cycles of files that import each other, one of each group; a package's ``__init__`` does not count."""
    left = {
        name: {each for each in targets if each in imports and not each.endswith("__init__.py")} - {name}
        for name, targets in imports.items()
        if not name.endswith("__init__.py")
    }
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            yield " -> ".join(circle)
            for name in circle:
                left.pop(name, None)
        else:
            return


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="figures of the code")
    parser.add_argument("--list", action="store_true", help="show the places")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="store the table in benchmarks/results")
    options = parser.parse_args()
    house = look()
    if options.json:
        print(json.dumps(house.figures()))
        return
    report = Report("Figures of the code")
    report.table("Figures", ["what", "number"], list(house.figures().items()))
    if options.list:
        for name, places in house.places().items():
            print("", f"{name}:", *places, sep="\n  ")
    if options.save:
        report.save("house")


if __name__ == "__main__":
    main()
