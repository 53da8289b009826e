"""The public names are complete and documented, and packages import only packages below them."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import pulsar_nack
from tests.for_each import for_each

ROOT = Path(pulsar_nack.__file__).parent
pytestmark = pytest.mark.xdist_group("imports")  # read once
FILES = sorted(ROOT.rglob("*.py"))
PUBLIC = {
    "pulsar_nack",
    "pulsar_nack.backoff",
    "pulsar_nack.cli",
    "pulsar_nack.clock",
    "pulsar_nack.config",
    "pulsar_nack.consumer",
    "pulsar_nack.consumer.durable",
    "pulsar_nack.consumer.transport",
    "pulsar_nack.cursor",
    "pulsar_nack.cursor.format",
    "pulsar_nack.cursor.logs",
    "pulsar_nack.delayed",
    "pulsar_nack.delayed.bucket",
    "pulsar_nack.delayed.format",
    "pulsar_nack.delayed.storage",
    "pulsar_nack.delayed.ticks",
    "pulsar_nack.errors",
    "pulsar_nack.ids",
    "pulsar_nack.index",
    "pulsar_nack.inspection",
    "pulsar_nack.inspection.folders",
    "pulsar_nack.integrations",
    "pulsar_nack.integrations.taskiq",
    "pulsar_nack.ledger",
    "pulsar_nack.ledger.faults",
    "pulsar_nack.ledger.files",
    "pulsar_nack.ledger.format",
    "pulsar_nack.ledger.memory",
    "pulsar_nack.ledger.ownership",
    "pulsar_nack.ledger.segments",
    "pulsar_nack.nack",
    "pulsar_nack.observe",
    "pulsar_nack.pipeline",
    "pulsar_nack.pipeline.schemas",
    "pulsar_nack.planning",
    "pulsar_nack.testing",
    "pulsar_nack.topic",
    "pulsar_nack.wire",
}
LAYERS = {
    "foundation": 0,
    "index": 1,
    "ledger": 1,
    "planning": 1,
    "nack": 2,
    "cursor": 2,
    "delayed": 3,
    "consumer": 3,
    "topic": 4,
    "wire": 4,
    "_connect": 5,
    "names": 6,
    "inspection": 7,
    "integrations": 7,
    "observe": 7,
    "testing": 7,
    "pipeline": 8,
    "cli": 9,
    "__main__": 10,
}
"""From bottom to top; the foundation is every other module of the top package, ``names`` its ``__init__``."""
ANYWHERE = ("",)
OFFICIAL = ("consumer/_official", "consumer/_official_ids", "consumer/_subscribe")
CONFINED: dict[str, tuple[str, ...]] = {
    "anyio": ANYWHERE,
    "pydantic": ANYWHERE,
    "pyroaring": ("index/",),
    "sortedcontainers": ("index/",),
    "pulsar": (*OFFICIAL, "cli/", "testing/_embedded_broker"),
    "_pulsar": (*OFFICIAL, "cli/", "testing/_embedded_broker"),
    "pulsar_lite": ("cli/", "testing/_embedded_broker"),
    "google": ("delayed/format", "delayed/_snapshot_pb2", "cursor/", "topic/", "wire/"),
    "google_crc32c": ("wire/",),
    "cramjam": ("wire/",),
    "numpy": ("pipeline/",),
    "pyspark": ("pipeline/", "cli/_pipeline"),
    "pyarrow": ("pipeline/",),
    "pandas": ("pipeline/",),
    "obstore": ("ledger/_object_", "ledger/faults"),
    "prometheus_client": ("observe/_scraping", "observe/_consumer_metrics", "observe/_broker_metrics"),
    "opentelemetry": ("observe/_consumer_metrics", "observe/_message_spans"),
    "structlog": ("observe/_log_hooks",),
    "taskiq": ("integrations/taskiq",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "matplotlib": ("cli/",),
}
"""Which files may import which external package, by the beginnings of their paths."""


class Import(NamedTuple):
    """One import statement: the importing and the imported name, in full."""

    importer: str
    imported: str
    line: int


def module_name(file: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_public(name: str) -> bool:
    """Return whether no part of a dotted name is private."""
    return not any(part.startswith("_") for part in name.split("."))


def imports_of(file: Path) -> Iterator[Import]:
    """Read the imports of a file, those inside of functions and for type checkers included."""
    name = module_name(file)
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(name, alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(name, f"{stem}.{alias.name}", node.lineno) for alias in node.names)


def layer_of(name: str) -> int:
    """Return the layer of one of our modules."""
    parts = name.split(".")
    if len(parts) == 1:
        return LAYERS["names"]
    if (ROOT / parts[1]).is_dir() or parts[1] in LAYERS:
        return LAYERS[parts[1]]
    return LAYERS["foundation" if (ROOT / f"{parts[1]}.py").is_file() else "names"]


def same_part(one: str, other: str) -> bool:
    """Return whether two modules are in the same package below the top."""
    return one.split(".")[1:2] == other.split(".")[1:2]


@pytest.fixture(scope="module")
def all_imports() -> list[tuple[Path, Import]]:
    """Read the imports of all files, each with its file."""
    return [(file, found) for file in FILES for found in imports_of(file)]


def load(name: str) -> ModuleType:
    """Import a public module; skip if its optional packages are not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs an optional package: {error}")


def test_public_modules_are_these() -> None:
    """Code lies in private modules; each module without an underscore is public deliberately, and listed here."""
    assert {name for name in map(module_name, FILES) if is_public(name)} == PUBLIC


@for_each("name", sorted(PUBLIC))
def test_all_is_complete(name: str) -> None:
    """Each public module has a docstring and a sorted ``__all__`` without duplicates, and every name in it exists."""
    module = load(name)
    promised = module.__all__
    assert module.__doc__
    assert sorted(set(promised)) == sorted(promised)
    assert [each for each in promised if not hasattr(module, each)] == []
    assert [each for each in promised if each.startswith("_") and each != "__version__"] == []


@for_each("name", sorted(PUBLIC - {"pulsar_nack.cli"}))
def test_nothing_public_is_left_out(name: str) -> None:
    """A class or function that a public module defines, or a package takes from its own modules, is in ``__all__``."""
    module = load(name)
    mine = [
        each
        for each, value in vars(module).items()
        if not each.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and (value.__module__ == name or value.__module__.startswith(f"{name}."))
    ]
    assert sorted(set(mine) - set(module.__all__)) == []


@for_each("name", sorted(PUBLIC))
def test_public_objects_are_documented(name: str) -> None:
    """Each public class and function has its own docstring, and so have their public methods."""
    module = load(name)
    missing = []
    for each in module.__all__:
        value = getattr(module, each)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not value.__doc__ or (inspect.isclass(value) and "__doc__" not in vars(value)):
            missing.append(each)
        methods = vars(value).items() if inspect.isclass(value) else ()
        missing += [
            f"{each}.{method}"
            for method, function in methods
            if not method.startswith("_")
            and (inspect.isfunction(function) or isinstance(function, property))
            and not inspect.getdoc(function)
        ]
    assert missing == []


def test_the_top_exports_what_users_need() -> None:
    """The names that documentation and examples import from the top are there."""
    needed = {"MessageId", "Position", "NackConfig", "NegativeAcksTracker", "NackSchedule", "Fixed", "Multiplier"}
    needed |= {"Exponential", "Steps", "Clock", "ConsumerPort", "Delivery", "PulsarNackError", "__version__"}
    assert needed <= set(pulsar_nack.__all__)
    assert len(pulsar_nack.__all__) <= 40
    for name, home in pulsar_nack._HOMES.items():
        assert getattr(pulsar_nack, name) is getattr(importlib.import_module(f"pulsar_nack.{home}"), name)


def test_arrows_point_down(all_imports: list[tuple[Path, Import]]) -> None:
    """A package imports itself and packages below it, never one beside or above it."""
    wrong = [
        found
        for _, found in all_imports
        if found.imported.startswith("pulsar_nack")
        and not same_part(found.importer, found.imported)
        and layer_of(found.imported) >= layer_of(found.importer)
        and not (layer_of(found.imported) == layer_of(found.importer) == LAYERS["foundation"])
    ]
    assert wrong == []


def test_packages_from_outside_are_confined(all_imports: list[tuple[Path, Import]]) -> None:
    """An external package is imported only where it belongs; a new one has to be added to the table here."""
    wrong = []
    for file, found in all_imports:
        path = file.relative_to(ROOT).as_posix()
        top = found.imported.partition(".")[0]
        if top in sys.stdlib_module_names or top in {"pulsar_nack", "__future__"}:
            continue
        if not path.startswith(CONFINED.get(top, ())):
            wrong.append(f"{path}:{found.line} imports {top}")
    assert wrong == []


def test_the_reader_of_imports_sees_them(all_imports: list[tuple[Path, Import]]) -> None:
    """The checks above see relative, absolute and late imports, with full names."""
    seen = {(each.importer, each.imported) for _, each in all_imports}
    assert ("pulsar_nack", "pulsar_nack.ids.MessageId") in seen
    assert ("pulsar_nack._connect", "pulsar_nack.wire._client.connect") in seen
    assert ("pulsar_nack.testing._fake_port", "pulsar_nack.consumer.Delivery") in seen
    assert ("pulsar_nack.observe._log_hooks", "structlog") in seen
    assert layer_of("pulsar_nack.nack.X") > layer_of("pulsar_nack.index._store.Y") > layer_of("pulsar_nack.ids.Z")
