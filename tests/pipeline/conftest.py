"""One Spark session for all tests of the pipeline: local, two cores, nothing but loopback."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here more time than others have: Spark's start counts for the first."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(180))


def _reason() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and (Path(home) / "bin" / "java").exists()):
        return None
    return "Spark needs Java 17 or later, and there is none here"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return the session that all tests share; skips where there is no Java."""
    reason = _reason()
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
