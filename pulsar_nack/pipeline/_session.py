"""The Spark session that jobs run in: the one there is, that of spark-submit, or a local one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from ._source import register_source

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",  # see _source
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


def local_session(
    master: str | None = None, *, name: str = "pulsar-nack", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or start one: local on all cores, unless spark-submit or ``master`` say otherwise.

    A local session that starts the JVM has it use the parallel garbage collector, which takes a fifth of the time off
    most jobs, unless ``config`` or ``JAVA_TOOL_OPTIONS`` choose another.

    :param master: such as ``local[2]`` or ``spark://host:7077``; None lets ``spark-submit`` decide where it runs this
    :param config: further settings of Spark, which win over those made here
    """
    settings = dict(_QUIET)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    if master is not None and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= _LOCAL | _collector()
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register_source(session)
    return session


def _collector() -> dict[str, str]:
    """Return the option for the parallel collector; two collectors would keep the JVM from starting."""
    chosen = "".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    return {} if "GC" in chosen else {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
