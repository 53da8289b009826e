"""What importing the library loads, and what it must not do; each case in a fresh process."""

from __future__ import annotations

import gc
import json
import sys
from functools import cache
from typing import Any

import pytest

from pulsar_nack import InvalidArgumentError, connect, observe
from tests.for_each import for_each
from tests.processes import run_python
from tests.tiers import seeds

OPTIONAL = (
    "_pulsar", "cramjam", "google", "google_crc32c", "matplotlib", "numpy", "pandas", "prometheus_client", "pulsar",
    "pulsar_lite", "pyarrow", "pyspark", "rich", "structlog", "taskiq", "typer", "uvloop",
)  # fmt: skip
NEEDED = {
    "annotated_types", "anyio", "cython_runtime", "exceptiongroup", "idna", "pulsar_nack", "pydantic", "pydantic_core",
    "pyroaring", "sniffio", "sortedcontainers", "typing_extensions", "typing_inspection",
}  # fmt: skip
CORE = (
    "pulsar_nack",
    "pulsar_nack.index",
    "pulsar_nack.nack",
    "pulsar_nack.ledger",
    "pulsar_nack.delayed",
    "pulsar_nack.cursor",
    "pulsar_nack.planning",
    "pulsar_nack.consumer",
    "pulsar_nack.testing",
    "pulsar_nack.observe",
    "pulsar_nack.integrations",
    "pulsar_nack.pipeline",
    "pulsar_nack.cli",
)

PROBE = """
import json, logging, signal, sys, threading

optional, names = json.loads(sys.argv[1])
touched, acts = [], []


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in optional:
            touched.append(name)
            raise ImportError(f"{name} is blocked")


def watch(event, args):
    if event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.system", "os.putenv", "signal.")):
        acts.append(event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        acts.append(f"open {args[0]} to write")


sys.meta_path.insert(0, Blocker())
sys.dont_write_bytecode = True
interrupt = signal.getsignal(signal.SIGINT)
before = set(sys.modules)
sys.addaudithook(watch)
for name in names:
    __import__(name)
acts = list(acts)
loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.Logger.manager.loggerDict))]
print(json.dumps({
    "touched": touched,
    "acts": acts,
    "modules": sorted(set(sys.modules) - before),
    "threads": threading.active_count(),
    "handlers": [f"{logger.name}: {logger.handlers}" for logger in loggers if logger.handlers],
    "levels": [logger.name for logger in loggers[1:] if logger.level],
    "interrupt": signal.getsignal(signal.SIGINT) is interrupt,
    "stdlib": sorted(sys.stdlib_module_names),
}))
"""


@cache
def import_freshly(*names: str) -> dict[str, Any]:
    """Import modules in a new process that refuses the optional packages; return what happened."""
    done = run_python("-c", PROBE, json.dumps([OPTIONAL, names]))
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def own(modules: list[str]) -> set[str]:
    """Return the library's modules among these."""
    return {name for name in modules if name.partition(".")[0] == "pulsar_nack"}


@pytest.mark.parametrize("name", seeds(CORE))
def test_imports_without_optional_packages(name: str) -> None:
    """Each part of the core can be imported alone; it neither needs nor loads an optional package."""
    report = import_freshly(name)
    assert report["touched"] == []
    assert [module for module in report["modules"] if module.partition(".")[0] in OPTIONAL] == []
    assert name in report["modules"]


def test_brings_in_what_it_depends_on_only() -> None:
    """The loaded packages are the core's declared dependencies and theirs."""
    report = import_freshly("pulsar_nack")
    foreign = {module.partition(".")[0] for module in report["modules"]} - set(report["stdlib"])
    assert {name for name in foreign if not name.startswith("_")} <= NEEDED


def test_is_bounded() -> None:
    """An import of the core loads a bounded number of modules, and of ours only those that it needs."""
    modules = import_freshly("pulsar_nack")["modules"]
    assert len(modules) < 300
    assert len(own(modules)) < 120
    parts = {name.split(".")[1] for name in own(modules) if "." in name}
    assert parts <= {
        "_check",
        "_connect",
        "_delays",
        "_foreign",
        "_lifetime",
        "_topic_pattern",
        "_varint",
        "_version",
        "_waiting",
        "_wake_up",
        "backoff",
        "clock",
        "config",
        "consumer",
        "errors",
        "ids",
        "index",
        "nack",
    }


COUNTED = """
import gc, asyncio
gc.collect()
before = len(gc.get_objects())
import pulsar_nack
client = pulsar_nack.connect("pulsar://localhost:6650", freeze_gc=FREEZE)
frozen = gc.get_freeze_count()
gc.collect()
print(len(gc.get_objects()) + frozen - before, frozen)
"""


def test_is_little_for_the_garbage_collector() -> None:
    """O41: a consuming program has at most 27 000 objects of ours and of our dependencies that the collector tracks."""
    done = run_python("-c", COUNTED.replace("FREEZE", "False"))
    objects, frozen = map(int, done.stdout.split())
    assert 1_000 < objects < 27_000
    assert frozen < 100


def test_can_be_frozen() -> None:
    """O41: ``connect(freeze_gc=True)`` makes the collector skip all existing objects."""
    done = run_python("-c", COUNTED.replace("FREEZE", "True"))
    objects, frozen = map(int, done.stdout.split())
    assert frozen > objects > 1_000


@for_each("value", [1, None, "yes"])
def test_what_does_not_freeze(value: object) -> None:
    """O41: values other than True and False are refused, and nothing is frozen."""
    frozen = gc.get_freeze_count()
    with pytest.raises(InvalidArgumentError, match="freeze_gc"):
        connect("pulsar://localhost:6650", freeze_gc=value)  # type: ignore[arg-type]
    assert gc.get_freeze_count() <= frozen


@pytest.mark.parametrize("names", seeds([CORE[:1], CORE]), ids=["core", "all parts"])
def test_has_no_side_effects(names: tuple[str, ...]) -> None:
    """Importing opens no socket, starts no thread, process or loop, writes no file, and touches no signal or logger."""
    report = import_freshly(*names)
    assert report["acts"] == []
    assert report["threads"] == 1
    assert report["handlers"] == []
    assert [name for name in report["levels"] if name.startswith("pulsar_nack")] == []
    assert report["interrupt"]


def test_the_probe_sees_faults() -> None:
    """The probe works: it reports a blocked package and what a loop opens."""
    blocked = run_python("-c", PROBE, json.dumps([["colorsys"], ["colorsys"]]))
    assert "colorsys is blocked" in blocked.stderr
    probe = PROBE.replace("__import__(name)", "import asyncio; asyncio.new_event_loop().close()")
    opened = run_python("-c", probe, json.dumps([[], ["any"]]))
    assert "socket.__new__" in json.loads(opened.stdout)["acts"]


def test_hooks_import_their_package_when_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of a hook is imported when the hook is created; tests above import the hook's module without it."""
    monkeypatch.setitem(sys.modules, "structlog", None)
    with pytest.raises(ImportError, match="structlog"):
        observe.structlog_hook()
