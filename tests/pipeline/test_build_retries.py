"""Workers that die while an index is being built, in a cluster that retries their tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_spark
from tests.patience import patience

from .delivering import contents
from .test_build_local import build

ROWS = [(ledger, entry, 1_000 + entry) for ledger in range(40) for entry in range(50)]
SCRIPT = """
import os, signal, sys
from contextlib import suppress
from pathlib import Path

from pulsar_nack.pipeline import build_index, local_session
from tests.conftest import QUICK_JAVA
from tests.pipeline.test_build_local import SMALL
from tests.pipeline.test_build_retries import ROWS

folder = Path(sys.argv[1])
spark = local_session(
    "local-cluster[1,2,1024]",
    config={
        "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.executor.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.task.maxFailures": "9",
        "spark.sql.adaptive.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.driver.extraJavaOptions": QUICK_JAVA, "spark.executor.extraJavaOptions": QUICK_JAVA,
    },
)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def this_worker():
    return os.getpid()


def its_executor():
    executor = parent_of(os.getppid())  # a worker is a child of Spark's daemon, and that of the executor
    assert b"java" in Path(f"/proc/{executor}/cmdline").read_bytes().split(bytes(1))[0]
    return executor


def build(name, victim, most):
    target, deaths = folder / name, folder / f"{name}-deaths"
    deaths.mkdir()

    def kill_when_some_are_written(batches):
        for batch in batches:
            written = len(list(folder.glob(f".{name}.*.building/index/snapshot-*")))
            dead = len(list(deaths.iterdir()))
            if dead < most and written > 20 * (1 + dead):
                with suppress(FileExistsError):  # another worker was first
                    (deaths / str(dead)).mkdir()
                    os.kill(victim(), signal.SIGKILL)
            yield batch

    type(df).mapInArrow = lambda self, work, schema: real(
        self, lambda batches: work(kill_when_some_are_written(batches)), schema
    )
    build_index(spark, df, target, SMALL, unit_rows=500)
    assert len(list(deaths.iterdir())) == most


df = spark.createDataFrame(ROWS, "ledger_id long, entry_id long, deliver_at long").repartition(4)
real = type(df).mapInArrow
build("workers", this_worker, 3)
build("executor", its_executor, 1)
spark.stop()
"""


def spark_home(folder: Path) -> Path:
    """Return a folder with the contents of Spark's own; the executors of a cluster write their files into it."""
    folder.mkdir()
    for each in require_spark().iterdir():
        (folder / each.name).symlink_to(each)
    return folder


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_deaths_on_the_way_change_nothing(tmp_path: Path) -> None:
    """Killed while writing, with shuffled data, three workers, then an executor: the bytes are the same."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "SPARK_HOME": str(spark_home(tmp_path / "spark"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True, text=True, timeout=patience(150), env=environment, cwd=root, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    build(ROWS, tmp_path / "local", unit_rows=500)
    for name in ("workers", "executor"):
        assert contents(tmp_path / name) == contents(tmp_path / "local")
    names = ["executor", "executor-deaths", "local", "spark", "workers", "workers-deaths"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
