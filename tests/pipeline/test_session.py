"""The local session's settings."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pulsar_nack.pipeline._source import _collector


def test_one_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session chooses a collector unless the environment does: two would prevent the JVM from starting."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert _collector() == {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g -XX:+UseSerialGC")
    assert _collector() == {}
