"""Workers that die while an index is being built, in a session that tries their tasks again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .delivering import contents
from .test_build_local import build

ROWS = [(ledger, entry, 1_000 + entry) for ledger in range(40) for entry in range(50)]
SCRIPT = """
import os, signal, sys
from pathlib import Path

from pulsar_nack.pipeline import build_index, local_session
from tests.pipeline.test_build_local import SMALL
from tests.pipeline.test_build_retries import ROWS

target, deaths = map(Path, sys.argv[1:])
spark = local_session("local[2,9]", config={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})


def die_when_some_are_written(batches):
    for batch in batches:
        written = len(list(target.parent.glob(f".{target.name}.*.building/index/snapshot-*")))
        if written > 20 * (1 + len(list(deaths.iterdir()))) and len(list(deaths.iterdir())) < 3:
            (deaths / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
df = spark.createDataFrame(ROWS, "ledger_id long, entry_id long, deliver_at long").repartition(2)
real = type(df).mapInArrow


def with_deaths(self, work, schema):
    def dying(batches):
        return work(die_when_some_are_written(batches))

    return real(self, dying, schema)


type(df).mapInArrow = with_deaths
print(build_index(spark, df, target, SMALL, unit_rows=500))
spark.stop()
"""


def run_script(tmp_path: Path, script: str, *, deaths: int) -> None:
    """Run a job in a process of its own, in which so many processes have to die; compare what it built."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or later, and there is none here")
    dead = tmp_path / "deaths"
    dead.mkdir()
    command = [sys.executable, "-c", script, str(tmp_path / "index"), str(dead)]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    environment["SPARK_HOME"] = str(spark_home(tmp_path / "spark"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=root, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(dead.iterdir())) == deaths
    build(ROWS, tmp_path / "local", unit_rows=500)
    assert contents(tmp_path / "index") == contents(tmp_path / "local")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deaths", "index", "local", "spark"]


def spark_home(folder: Path) -> Path:
    """Return a folder that has what Spark's has; executors of a cluster here put their files into it."""
    pyspark = pytest.importorskip("pyspark")
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (folder / each.name).symlink_to(each)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_that_die_on_the_way_change_nothing(tmp_path: Path) -> None:
    """Workers are killed amid what they write, three times; their tasks run again, and the bytes are the same."""
    run_script(tmp_path, SCRIPT, deaths=3)


EXECUTORS = """
import os, signal, sys
from pathlib import Path

from pulsar_nack.pipeline import build_index, local_session
from tests.pipeline.test_build_local import SMALL
from tests.pipeline.test_build_retries import ROWS

target, deaths = map(Path, sys.argv[1:])
spark = local_session(
    "local-cluster[2,1,1024]",
    config={
        "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.executor.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.task.maxFailures": "9",
        "spark.sql.adaptive.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    },
)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_the_executor(batches):
    for batch in batches:
        written = len(list(target.parent.glob(f".{target.name}.*.building/index/snapshot-*")))
        if written > 20 and not list(deaths.iterdir()):
            executor = parent_of(os.getppid())  # this process is a child of Spark's daemon, and that of the executor
            assert b"java" in Path(f"/proc/{executor}/cmdline").read_bytes().split(bytes(1))[0]
            (deaths / str(executor)).touch()
            os.kill(executor, signal.SIGKILL)
        yield batch


df = spark.createDataFrame(ROWS, "ledger_id long, entry_id long, deliver_at long").repartition(4)
real = type(df).mapInArrow


def with_deaths(self, work, schema):
    return real(self, lambda batches: work(kill_the_executor(batches)), schema)


type(df).mapInArrow = with_deaths
print(build_index(spark, df, target, SMALL, unit_rows=500))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_executor_that_dies_on_the_way_changes_nothing(tmp_path: Path) -> None:
    """An executor of a cluster is killed amid what it writes, with what it had shuffled; the bytes are the same."""
    run_script(tmp_path, EXECUTORS, deaths=1)
