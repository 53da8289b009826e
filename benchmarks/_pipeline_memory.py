"""The peak memory of this process and its descendants, sampled while something runs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
JVM, WORKERS, DRIVER = "jvm", "workers", "driver"


class PeakMemory:
    """Samples in a thread; ``mib`` has the highest sum for each kind: the JVM, Python workers, and this process.

    Pages that processes share, such as forked workers, count in proportion (the proportional set size).
    """

    def __init__(self, interval: float = 0.25) -> None:
        self._interval = interval
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, daemon=True)
        self.mib: dict[str, float] = defaultdict(float)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample_all(self) -> None:
        while True:
            found: dict[str, float] = defaultdict(float)
            for kind, size in _family():
                found[kind] += size
            for kind, size in found.items():
                self.mib[kind] = max(self.mib[kind], size)
            if self._is_over.wait(self._interval):
                return


def _family() -> Iterator[tuple[str, float]]:
    """Yield the kind and size of this process and of its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            names[int(folder.name)] = name
            children[int(rest.split()[1])].append(int(folder.name))
    own = int((PROC / "self").readlink().name)
    waiting = [own]
    while waiting:
        pid = waiting.pop()
        waiting += children[pid]
        kind = DRIVER if pid == own else JVM if names.get(pid) == "java" else WORKERS
        yield kind, _mib(pid)


def _mib(pid: int) -> float:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
