"""The documentation is true: its snippets run and print what it says, and its tables are complete.

A comment above a block says what it is, in the pages of ``docs`` and in the README:

- ``<!-- runs -->`` Python that needs no broker; the snippets of a page run in turn, in one namespace
- ``<!-- runs on a broker -->`` the same, with the official client on the embedded broker
- ``<!-- runs on Spark -->`` the same on the session that all tests share, see ``tests/pipeline/test_snippets.py``
- ``<!-- runs as a worker -->`` a ``main()`` that consumes ``orders`` and calls a handler, which the test supplies
- ``<!-- prints -->`` what the snippet before it prints
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest

import pulsar_nack
from pulsar_nack import (
    BucketConfig,
    CursorConfig,
    DelayedDeliveryConfig,
    MessageId,
    NackConfig,
    NackSchedule,
    NackStatistics,
)
from pulsar_nack.config import TopicConfig
from pulsar_nack.consumer import ConsumerStatistics
from pulsar_nack.cursor import CursorStatistics, GateStatistics
from pulsar_nack.cursor._gate import DEFAULT_LIMIT
from pulsar_nack.delayed import BucketStatistics, DelayedFactoryStatistics
from pulsar_nack.testing import EmbeddedBroker
from pulsar_nack.wire import ClientStatistics
from tests.for_each import for_each

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "pipeline").glob("*.md")),
]
BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n\n?)?^```(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PATH: Final = re.compile(r'"/?([\w/-]+(?:/|\.parquet|\.html)|(?:data|var)/[\w/]+)"')
"""A file or folder in a snippet; an absolute path is placed in the test's folder."""
MARKS: Final = {"runs", "runs on a broker", "runs on Spark", "runs as a worker", "prints"}
NO_BROKER: Final = EmbeddedBroker.unavailable_reason() or (
    None if importlib.util.find_spec("pulsar") else "pulsar-client is not installed"
)
needs_broker = pytest.mark.skipif(NO_BROKER is not None, reason=f"no embedded broker: {NO_BROKER}")


class Block(NamedTuple):
    """A fenced block of a page; ``line`` is that of its first line."""

    mark: str | None
    language: str
    text: str
    line: int


class Snippet(NamedTuple):
    """A program and what it has to print, None if the page does not say."""

    block: Block
    printed: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(found["mark"], found["language"], found["text"], line)


def snippets_of(page: Path, mark: str) -> list[Snippet]:
    """Return the snippets of a page that have this mark."""
    blocks = list(blocks_of(page))
    return [
        Snippet(block, after.text if after is not None and after.mark == "prints" else None)
        for block, after in zip_longest(blocks, blocks[1:])
        if block.mark == mark
    ]


def compiled(page: Path, block: Block) -> Any:
    """Compile a snippet so that a traceback points into its page."""
    return compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)


def run_snippets(page: Path, mark: str, *, names: Mapping[str, Any] | None = None, paths: Path | None = None) -> str:
    """Run the snippets of a page in turn, compare what they print, and return it.

    :param names: names that the page leaves undefined
    :param paths: a folder for the files and folders that a snippet names
    """
    namespace: dict[str, Any] = {"__name__": "snippets", **(names or {})}
    said = ""
    for block, printed in snippets_of(page, mark):
        text = block.text if paths is None else PATH.sub(f'"{paths}/\\g<1>"', block.text)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compiled(page, block._replace(text=text)), namespace)
        said += output.getvalue()
        if printed is not None:
            assert output.getvalue() == printed, f"{page.name}, line {block.line}"
    return said


def pages_with(mark: str) -> list[Any]:
    """Return the pages that have a snippet with this mark, as parameters."""
    return [pytest.param(page, id=page.name) for page in PAGES if snippets_of(page, mark)]


def undefined(text: str) -> set[str]:
    """Return the names that a program uses and does not define."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    made = {name.id for name in names if isinstance(name.ctx, ast.Store)} | set(dir(builtins))
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return used - made


def table_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    below = text[text.index(f"# {heading}\n") :]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


def first_names(page: str, heading: str) -> list[str]:
    """Return the names in the first column of that table."""
    return [cells[0].strip(" `") for cells in table_rows(page, heading)]


# -- snippets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages_with("runs"))
def test_snippets_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snippets that need no broker run, in turn, and print what the page says."""
    monkeypatch.setitem(sys.modules, "snippets", ModuleType("snippets"))  # taskiq looks for the task's module
    if "taskiq" in page.name:
        pytest.importorskip("taskiq")
    if "structlog" in page.read_text(encoding="utf-8"):
        structlog = pytest.importorskip("structlog")
        try:
            run_snippets(page, "runs")
        finally:
            structlog.reset_defaults()
    else:
        run_snippets(page, "runs")


@needs_broker
@pytest.mark.parametrize("page", pages_with("runs on a broker"))
def test_broker_snippets_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snippets with the official client run on the embedded broker and print what the page says."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    run_snippets(page, "runs on a broker")


@needs_broker
@pytest.mark.parametrize("page", pages_with("runs as a worker"))
async def test_worker_example_works(page: Path) -> None:
    """The first example, with a handler that is refused once, redelivers the message and acknowledges it."""
    import pulsar
    import pulsar.asyncio

    (snippet,) = snippets_of(page, "runs as a worker")
    calls: list[bytes] = []
    handled = asyncio.Event()

    class Refused(Exception):  # noqa: N818 - stands for the user's own
        pass

    async def handle(data: bytes) -> None:
        calls.append(data)
        if len(calls) == 1:
            raise Refused
        handled.set()

    async with EmbeddedBroker() as broker:
        text = snippet.block.text.replace("pulsar://localhost:6650", broker.service_url)
        names = undefined(text)
        namespace: dict[str, Any] = {"__name__": "snippet"}
        namespace.update({name: Refused if name[0].isupper() else handle for name in names})
        exec(compiled(page, snippet.block._replace(text=text)), namespace)
        assert {"main"} <= namespace.keys()
        worker = asyncio.create_task(namespace["main"]())
        client = pulsar.asyncio.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = await client.create_producer("orders")
        while not handled.is_set():  # the subscription begins when it is created: earlier messages are not delivered
            if not calls:
                await producer.send(b"order 1")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handled.wait(), 0.3)
            assert not worker.done(), "the worker ended by itself"
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
        await client.close()
    assert calls.count(b"order 1") == len(calls) >= 2


@for_each("page", PAGES)
def test_python_blocks_are_marked(page: Path) -> None:
    """Every Python block of the documentation runs, and no mark is wrong."""
    blocks = list(blocks_of(page))
    for previous, block in zip([None, *blocks], blocks, strict=False):
        assert block.mark is None or block.mark in MARKS, f"{page.name}, line {block.line}: {block.mark}"
        if block.language == "python":
            compiled(page, block)
            assert page.name == "README.md" or (block.mark or "").startswith("runs"), f"{page.name}, line {block.line}"
        if block.mark == "prints":
            assert previous is not None
            assert (previous.mark or "").startswith("runs"), f"{page.name}, line {block.line}"


# -- tables ----------------------------------------------------------------------------------------------------------


def test_what_the_official_client_cannot_do() -> None:
    """O58: one table lists what is not possible with the official client: O1 to O3, O6, O8, O16, O17, O19."""
    rows = {cells[0]: cells[1] for cells in table_rows("native.md", "Beside the official client")}
    assert "ack_memory" in rows["a replay: someone seeks, or an administrator resets the subscription"]
    assert "BrokerError" in rows["`acknowledge(id)` of a member of a batch that was not received yet"]
    gone = "held messages that were skipped, cleared, expired or settled by another consumer"
    assert rows[gone] == "redelivered at their deadlines"
    assert "one topic without partitions" in rows["`receiver_queue_size=0`"]
    assert "stay here" in rows["`pause()`"]
    assert rows["a pattern that matches nothing"] == "no warning"


SETTINGS: list[tuple[str, str, Any]] = [
    ("configuration.md", "Nacks", NackConfig),
    ("configuration.md", "Delayed delivery", BucketConfig),
    ("configuration.md", "Acknowledgement state", CursorConfig),
    ("local-topics.md", "Settings", TopicConfig),
]


@for_each(("page", "heading", "kind"), SETTINGS)
def test_every_setting_is_listed(page: str, heading: str, kind: Any) -> None:
    """The table of a class of settings names each field with its alias, and its other names."""
    rows = {cells[0].strip("` "): re.findall(r"`(\w+)`", cells[1]) for cells in table_rows(page, heading)}
    also = rows.pop("negative_ack_redelivery_delay_ms", None)
    assert also == (["negativeAckRedeliveryDelayMs"] if kind is NackConfig else None)
    assert {name: aliases[0] for name, aliases in rows.items()} == {
        name: field.alias for name, field in kind.model_fields.items()
    }
    if kind is BucketConfig:  # those of all trackers come first
        assert list(rows)[: len(DelayedDeliveryConfig.model_fields)] == list(DelayedDeliveryConfig.model_fields)
    if kind is CursorConfig:
        limit = "max_per_cursor_metadata_size_in_bytes"
        assert getattr(CursorConfig(**{rows[limit][1]: 2_048}), limit) == 2_048
        assert getattr(CursorConfig(), limit) == DEFAULT_LIMIT


def test_every_keyword_of_consumers_is_listed() -> None:
    """The configuration page names each keyword of Consumer."""
    parameters = inspect.signature(pulsar_nack.Consumer).parameters.values()
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert sorted(first_names("configuration.md", "Consumers")) == sorted(keywords)


def test_every_error_is_listed() -> None:
    """The configuration page says of each error what to do."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name in set(pulsar_nack.errors.__all__) - {"PulsarNackError"}:
        assert f"| `{name}` |" in text


@for_each(
    ("page", "heading", "kind"),
    [
        ("observability.md", "The consumer", ConsumerStatistics),
        ("observability.md", "The native client", ClientStatistics),
        ("observability.md", "The tracker", NackStatistics),
        ("delayed-buckets.md", "Statistics", BucketStatistics),
        ("delayed-buckets.md", "A factory's statistics", DelayedFactoryStatistics),
        ("acknowledgements.md", "Statistics", CursorStatistics),
        ("gate.md", "While it is paused", GateStatistics),
    ],
)
def test_every_statistic_is_listed(page: str, heading: str, kind: Any) -> None:
    """A page explains each field of statistics, in their order."""
    assert first_names(page, heading) == [field.name for field in fields(kind)]


def test_every_logger_is_listed() -> None:
    """O36: each logger has a public name and a row in the table, and the table has no others."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pulsar_nack").rglob("*.py"))
    names = set(re.findall(r'getLogger\(("?.+?"?)\)', code))
    assert {f'"{name}"' for name in first_names("observability.md", "Loggers")} == names


def test_every_metric_is_listed() -> None:
    """The page of buckets names each metric with its type."""
    families = pytest.importorskip("pulsar_nack.observe._broker_metrics").FAMILIES
    rows = {cells[0].strip("` "): cells[1] for cells in table_rows("delayed-buckets.md", "Metrics")}
    assert rows == {name: kind for name, (kind, _) in families.items()}


def test_alert_rules_know_what_is_exported() -> None:
    """Alert rules name the existing gauge and the default limit, and each says what to do."""
    metrics = pytest.importorskip("pulsar_nack.observe").CursorMetrics()
    (family,) = metrics.describe()
    ((name, kind, labels),) = table_rows("alerts.md", "Alert rules for acknowledgement state")
    assert (name, kind) == (f"`{family.name}`", family.type)
    assert re.findall(r"`(\w+)`", labels) == ["cluster", "namespace", "topic", "subscription"]
    (rules,) = [block.text for block in blocks_of(ROOT / "docs" / "alerts.md") if block.language == "yaml"]
    assert set(re.findall(r"\bpulsar_\w+", rules)) == {family.name}
    assert re.findall(r"vector\((\d+)\)", rules) == [str(DEFAULT_LIMIT)]
    assert re.findall(r"- alert: (\w+)", rules) == first_names("alerts.md", "What to do")


METRIC: Final = re.compile(r"\bpulsar_(?:nack|client)_consumer_\w+")
FUNCTIONS: Final = {"rate", "increase", "sum", "histogram_quantile", "by", "label_values"}


def exported() -> dict[str, set[str]]:
    """Return the names of all samples of consumers' metrics, each with its labels."""
    metrics = pytest.importorskip("pulsar_nack.observe").ConsumerMetrics()
    figures = pytest.importorskip("pulsar_nack.observe._consumer_metrics")
    labels = {label.replace(".", "_") for label in figures.LABELS}
    found = {}
    for name, figure in figures.FIGURES.items():
        found[figures.prometheus_name(name, figure.unit, figure.kind)] = labels | ({figure.label} - {""})
    for name, figure in figures.HISTOGRAMS.items():
        base = figures.prometheus_name(name, figure.unit, "")
        found.update({f"{base}_bucket": labels | {"le"}, f"{base}_sum": labels, f"{base}_count": labels})
    families = {f"{each.name}_total" if each.type == "counter" else each.name for each in metrics.describe()}
    assert families == {re.sub(r"_(bucket|sum)$", "", name) for name in found if not name.endswith("_count")}
    return found


def check_expression(text: str, samples: dict[str, set[str]]) -> set[str]:
    """Check names, labels, functions and brackets of an expression for Prometheus; return the metrics in it."""
    names = set(METRIC.findall(text))
    assert names <= samples.keys(), f"{names - samples.keys()} in {text}"
    closing: list[str] = []
    bare = re.sub(r'"[^"]*"', '""', text)
    for letter in bare:
        if letter in "([{":
            closing.append({"(": ")", "[": "]", "{": "}"}[letter])
        elif letter in ")]}":
            assert closing.pop() == letter, text
    assert not closing, text
    assert set(re.findall(r"([a-z_]+) ?\(", bare)) - {"and", "or"} <= FUNCTIONS, text
    for ranged in re.findall(r"\[([^\]]*)\]", bare):
        assert re.fullmatch(r"\d+[smhd]|\$__rate_interval", ranged), text
    labels = set().union(*(samples[name] for name in names))
    used = re.findall(r"(\w+)=", bare) + [
        label for some in re.findall(r"by \(([^)]*)\)", bare) for label in some.split(", ")
    ]
    assert set(used) <= labels, text
    return names


def test_metrics_of_consumers_are_listed() -> None:
    """U50: the page lists each metric with its type, by both exporters' names, and each outcome of a span."""
    figures = pytest.importorskip("pulsar_nack.observe._consumer_metrics")
    rows = {cells[0].strip("` "): (cells[1], cells[2]) for cells in table_rows("consumer-metrics.md", "The metrics")}
    assert rows == {
        figures.prometheus_name(name, figure.unit, getattr(figure, "kind", "")): (
            getattr(figure, "kind", "histogram"),
            f"`{name}`",
        )
        for name, figure in {**figures.FIGURES, **figures.HISTOGRAMS}.items()
    }
    outcomes = importlib.import_module("pulsar_nack.observe._message_spans")._BY_EVENT.values()
    assert sorted(first_names("consumer-metrics.md", "Spans")) == sorted(outcomes)


def test_alert_rules_of_consumers() -> None:
    """U50: alert rules name existing metrics and labels, and each says what to do."""
    yaml = pytest.importorskip("yaml")
    (text,) = [block.text for block in blocks_of(ROOT / "docs" / "consumer-metrics.md") if block.language == "yaml"]
    ((group,), samples) = yaml.safe_load(text)["groups"], exported()
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        names = check_expression(rule["expr"], samples)
        assert names
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used
        assert used <= set.intersection(*(samples[name] for name in names))
    assert [rule["alert"] for rule in group["rules"]] == first_names("consumer-metrics.md", "What to do")


def test_the_dashboard_of_consumers() -> None:
    """U50: panels and variables of the dashboard name existing metrics and labels, and do not overlap."""
    board = json.loads((ROOT / "docs" / "_static" / "consumer-dashboard.json").read_text(encoding="utf-8"))
    samples, shown = exported(), set[str]()
    for variable in board["templating"]["list"][1:]:
        check_expression(variable["definition"], samples)
        assert variable["definition"] == variable["query"]["query"]
    places = set[tuple[int, int]]()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places, panel["title"]
        places |= cells
        for target in panel["targets"]:
            shown |= check_expression(target["expr"], samples)
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= set(re.findall(r"by \(([^)]*)\)", target["expr"])[-1].split(", ")), target
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {name for name in samples if not name.endswith(("_count", "_sum"))} <= shown


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        (0, NackConfig()),
        (1, NackConfig(precision_ratio=None)),
        (2, NackConfig(negative_ack_precision_bit_cnt=16, precision_ratio=1 / 1000)),
        (3, NackConfig(negative_ack_precision_bit_cnt=0)),
    ],
)
def test_bucket_widths_are_right(row: int, settings: NackConfig) -> None:
    """The table of bucket widths says what the schedule does."""
    cells = table_rows("how-nacks-work.md", "How wide a bucket is")[row]
    schedule = NackSchedule(settings)
    for delay_ms, cell in zip((100, 1_000, 60_000, 86_400_000), cells[1:], strict=True):
        width = int(cell.removesuffix(" ms"))
        now_ms = -delay_ms % width  # a deadline at the start of a bucket: no earlier one is due
        start = schedule.bucket_start(now_ms, delay_ms)
        assert start == now_ms + delay_ms
        assert schedule.bucket_start(now_ms + width - 1, delay_ms) == start
        assert schedule.bucket_start(now_ms + width, delay_ms) == start + width


# -- the reference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "pulsar_nack",
        "pulsar_nack.testing",
        "pulsar_nack.observe",
        "pulsar_nack.ledger",
        "pulsar_nack.inspection",
        "pulsar_nack.pipeline",
    ],
)
def test_reference_is_complete(module: str) -> None:
    """The reference has an entry for every public name of a module, and of no other."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    entries = set(re.findall(rf"\.\. auto\w+:: {re.escape(module)}\.(\w+)(?![\w.])", text))
    names = set(importlib.import_module(module).__all__) - {"__version__"}
    assert names <= entries
    assert entries <= names | {"errors"}


def test_ids_in_the_picture_are_real() -> None:
    """The picture's buckets are those of the default settings: 960 of 64 ms, and 59 904 of 256 ms."""
    schedule = NackSchedule()
    for entry in range(3):
        schedule.add(MessageId(17, entry), entry * 10, 1_000)
    schedule.add(MessageId(17, 9), 0, 60_000)
    assert schedule.next_at() == 960
    assert len(schedule.pop_due(960)) == 3
    assert schedule.next_at() == 59_904


def test_modules_that_docstrings_refer_to_exist() -> None:
    """A private module named in a file's head or a comment exists beside that file, or in a package above."""
    package = ROOT / "pulsar_nack"
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in package.rglob("*.py")
        for name in re.findall(r"(?::mod:`\.|see ``)(_\w+)``?", file.read_text(encoding="utf-8"))
        if not any((folder / f"{name}.py").exists() or (folder / name).is_dir() for folder in file.parents)
    ]
    assert wrong == []
