"""What all tests share: how Hypothesis searches, a word on which tests were chosen, and one Spark session."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

TRANSPORT = "PULSAR_NACK_TEST_TRANSPORT"
"""Names the environment variable that says what the consumers of tests on brokers are over."""

# A time limit for each example would make a busy machine look like a fault; each test has one of its own.
settings.register_profile("here", deadline=None)
settings.register_profile("in-ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("in-ci" if os.environ.get("CI") else "here")


@pytest.fixture(params=["official", "wire"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have consumers over the official client, and over the native wire, also those of processes."""
    kind: str = request.param
    if kind == "wire":
        pytest.importorskip("google_crc32c")
    monkeypatch.setenv(TRANSPORT, kind)
    return kind


def pytest_report_header(config: pytest.Config) -> str:
    """Say which tests were chosen, and how to run the others."""
    return f"chosen: {config.option.markexpr or 'all'}  (make test, make test-slow, make test-broker)"


def _no_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and (Path(home) / "bin" / "java").exists()):
        return None
    return "Spark needs Java 17 or later, and there is none here"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return the session that all tests share, local and on two cores; skips where there is no Java."""
    reason = _no_java()
    if reason is not None:
        pytest.skip(reason)
    from pulsar_nack.pipeline import local_session

    folder = tmp_path_factory.mktemp("spark")
    session = local_session(
        "local[2]",
        name="tests",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets of py4j
        session.stop()
