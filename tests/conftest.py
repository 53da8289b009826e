"""What all tests share: the chosen tier, time limits, and one Spark session."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests import processor_time, tiers
from tests.patience import patience

TRANSPORT = "PULSAR_NACK_TEST_TRANSPORT"
"""The environment variable that chooses the client of consumers in tests on brokers: ``official`` or ``wire``."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of Java that halve the processor time of short runs, where compiling well does not pay."""

TINY_DATA = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}
"""Spark settings for tables of a few rows."""


@pytest.fixture(params=["official", "wire"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the official client and with the native one; processes that it starts use the same."""
    kind: str = request.param
    if kind == "wire":
        pytest.importorskip("google_crc32c")
    monkeypatch.setenv(TRANSPORT, kind)
    return kind


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier, limit its tests' processor time, and let signals end the processes that tests started."""
    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) is signal.SIG_IGN:  # as in the background of a shell; children would inherit it
            signal.signal(each, _ignore)
    tiers.choose(config)
    if tiers.is_fast():
        config.pluginmanager.register(processor_time.Check())


def _ignore(number: int, frame: object) -> None:
    """Do nothing. A new process does not inherit a handler, so there the signal has its usual effect again."""


def pytest_report_header(config: pytest.Config) -> str:
    """Say which tests were chosen, how to run the others, and the seed."""
    return f"chosen: {config.option.markexpr or 'all'}  (make test, make test-all, make test-broker); SEED={tiers.SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scale the time limit of each test, its own or the default, to this machine."""
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patience(marker.args[0] if marker else usual)), append=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let code that draws from the module ``random``, as jitter does, draw the same in each run."""
    random.seed(f"{tiers.SEED} {item.name}")


def pytest_collection_finish() -> None:
    """Make Hypothesis' table of characters and freeze loaded objects now, or it would count as some test's time.

    The table takes seconds in a fresh clone. Frozen modules and tests are skipped by garbage collections, of which
    tests that look for leaks make many.
    """
    st.text().validate()
    gc.collect()
    gc.freeze()


def require_spark() -> Path:
    """Return PySpark's folder; skip the test if PySpark or Java is missing."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java") and not (home and (Path(home) / "bin" / "java").exists()):
        pytest.skip("Spark needs Java 17 or later, and there is none here")
    return Path(pytest.importorskip("pyspark").__file__).parent


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return the session that all tests share, with settings for tiny data; skip without Java."""
    require_spark()
    from pulsar_nack.pipeline import local_session

    folder = tmp_path_factory.mktemp("spark")
    session = local_session(
        "local[2]",
        name="tests",
        config={
            **TINY_DATA,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets of py4j
        session.stop()
