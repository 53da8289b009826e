"""The jobs compared with plain Python that was written from their pages, on random traces: all tables are equal.

``SEED`` chooses other traces, and ``TRACES`` how many: ``TRACES=200 EVENTS=5000 make test ARGS="-k every_table"``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from tests.tiers import SEED

pytest.importorskip("google.protobuf")

from pulsar_nack.pipeline._holes import figures_of

from . import reference, reference_holes, reference_lines
from .random_traces import write_traces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRACES = int(os.environ.get("TRACES", "10"))
EVENTS = int(os.environ.get("EVENTS", "150"))


def same(name: str, table: DataFrame, expected: list[dict[str, Any]]) -> int:
    """Compare a table with rows in any order, fractions to 9 digits; return the number of rows."""
    found = Counter(map(_row, (row.asDict() for row in table.collect())))
    wanted = Counter(map(_row, expected))
    assert found == wanted, f"{name}: {(found - wanted).most_common(3)} for {(wanted - found).most_common(3)}"
    return sum(found.values())


def _row(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, _value(value)) for name, value in row.items()))


def _value(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, float) else value


def compare(found: Any, expected: Mapping[str, Iterable[dict[str, Any]]]) -> dict[str, int]:
    """Compare the tables of a job; return how many rows each has."""
    tables = found._asdict()
    assert tables.keys() == expected.keys()
    return {name: same(name, table, list(expected[name])) for name, table in tables.items()}


@pytest.mark.smoke
@pytest.mark.timeout(3_600 if TRACES > 20 else 120)
def test_every_table_is_that_of_the_reference(spark: SparkSession, tmp_path: Path) -> None:
    """Read events, and each table of ``accuracy``, ``retries`` and ``plan``, are equal; traces do not mix."""
    write_traces(tmp_path, SEED, TRACES, EVENTS)
    read = pipeline.read_traces(spark, tmp_path)
    events, refused = reference_lines.read(tmp_path)
    assert Counter((row.file, row.reason) for row in read.quarantine.collect()) == refused
    traces = read.traces.cache()
    try:
        assert traces.count() == len(events)
        rows = compare(pipeline.accuracy(traces), reference.accuracy(events))
        rows |= compare(
            pipeline.retries(traces, poison_at=3, window=2, baseline=6, factor=2, min_nacks=4),
            reference.retries(events, poison_at=3, window_ms=2_000, baseline=6, factor=2, min_nacks=4),
        )
        bits = 4 if TRACES <= 20 else 6
        rows["plan"] = same("plan", pipeline.plan(traces, max_bits=bits), reference.plan(events, max_bits=bits))
        requests = pipeline.accuracy(traces, event="redeliver", starvation=0.4, early=0.1, late=0.3)
        compare(
            requests,
            reference.accuracy(events, kind="redeliver", starvation_ms=400, early_ms=100, late_ms=300),
        )
        print(len(events), "events,", refused.total(), "refused;", rows)
        assert all(rows.values()), rows
    finally:
        traces.unpersist()
        spark.catalog.clearCache()


def test_holes_are_those_of_the_reference(spark: SparkSession) -> None:
    """Each column of ``holes``, on random states, most of them at several times."""
    from pulsar_nack.pipeline.schemas import HOLES

    rows = reference_holes.random_states(Random(SEED), 150)
    found = pipeline.holes(spark.createDataFrame(rows, HOLES), limit=reference_holes.LIMIT)
    assert same("holes", found, reference_holes.holes(rows)) >= 150


def test_figures_are_those_of_the_reference() -> None:
    """The figures of one state equal those of plain sets of entries."""
    random = Random(SEED)
    for _ in range(300):
        facts = reference_holes.random_facts(random)
        assert figures_of(facts)._asdict() == reference_holes.figures(facts), facts
