"""How long imports take, in fresh processes: the best and the median of several.

Run ``python benchmarks/import_time.py``. Python's own start is measured in the same way and subtracted. The first run
of each import is dropped, because it fills the caches.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CASES = {
    "pulsar_nack": "import pulsar_nack",
    "pulsar_nack.testing": "import pulsar_nack.testing",
    "pulsar_nack.observe": "import pulsar_nack.observe",
    "pydantic alone": "from pydantic import BaseModel\nclass Model(BaseModel): pass",
    "anyio alone": "import anyio",
    "asyncio alone": "import asyncio",
}


def run_once(code: str) -> float:
    """Return the time of one fresh process in ms."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - began) * 1000


def count_modules(code: str) -> int:
    """Return how many modules are loaded after the import."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(len(sys.modules))"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure the cases in turn, so that a disturbance affects all of them, and print a table."""
    parser = argparse.ArgumentParser(description="time of imports in fresh processes")
    parser.add_argument("--runs", type=int, default=10, help="runs of each, 10 by default")
    runs = parser.parse_args().runs
    cases = {"": "pass", **CASES}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs + 1):
        for name, code in cases.items():
            times[name].append(run_once(code))
    start_best, start_median = min(times[""][1:]), statistics.median(times[""][1:])
    print(f"Python {sys.version.split()[0]}, start {start_best:.0f} ms (subtracted below), {runs} runs")
    print(f"{'import':<22}{'best ms':>9}{'median ms':>11}{'modules':>9}")
    for name, code in CASES.items():
        best = min(times[name][1:]) - start_best
        median = statistics.median(times[name][1:]) - start_median
        print(f"{name:<22}{best:>9.0f}{median:>11.0f}{count_modules(code):>9}")


if __name__ == "__main__":
    main()
