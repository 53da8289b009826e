"""Memory of a structure, measured in fresh processes.

There are two figures, each measured in separate processes:

- *resident*: the growth of the resident pages of the process. Small structures could hide in memory that the
  interpreter used at its start and freed. So before the first measurement a small copy is built and dropped, free
  memory is returned to the system, and the free gaps in Python's own arenas are filled. The remaining noise makes
  the figure too small rather than too large, so the largest figure of several processes counts.
- *allocated*: the growth of the bytes in use according to glibc's ``malloc`` (``mallinfo2``), in a process in which
  Python takes every object from ``malloc``. This is exact, without fragmentation and free pages.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Build = Callable[..., tuple[Any, dict[str, Any]]]
"""A module-level function that returns the structure and a dict of figures."""

_WARM_UP = 60_000
_FILLERS = 2_000
_SMALL = range(16, 513, 16)
"""The block sizes of Python's own allocator."""
_LARGE = (65_536, 32_768, 16_384, 8_192, 4_096, 2_048, 1_024, 768, 560)
_BYTES_HEAD = 33
_LIBC = ctypes.CDLL(None)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def resident() -> int:
    """Return the resident bytes of this process without mapped files; Linux only."""
    return _status("RssAnon")


def peak_resident() -> int:
    """Return the peak of resident bytes of this process; Linux only."""
    return _status("VmHWM")


def reset_peak() -> int:
    """Reset the peak of :func:`peak_resident` to the present size, and return that size; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_resident()


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def allocated() -> int | None:
    """Return the bytes that ``malloc`` has allocated; None without glibc 2.33 or later."""
    info = _mallinfo()
    return None if info is None else int(info.uordblks + info.hblkhd)


def _mallinfo() -> _Mallinfo2 | None:
    try:
        mallinfo2 = _LIBC.mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = _Mallinfo2
    info: _Mallinfo2 = mallinfo2()
    return info


def return_free_memory() -> None:
    """Collect garbage, and let glibc return free pages to the system."""
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def grown_by(build: Build, *args: object, processes: int = 1) -> tuple[int, dict[str, Any]]:
    """Run ``build(*args)`` in fresh processes; return the largest resident size of its result, and its figures."""
    answers = [_ask(_resident_child, build, args) for _ in range(processes)]
    return max(grown for grown, _ in answers), answers[-1][1]


def allocated_by(build: Build, *args: object) -> int | None:
    """Run ``build(*args)`` in a fresh process; return the size of its result by ``malloc``, or None if unknown."""
    before = os.environ.get("PYTHONMALLOC")
    os.environ["PYTHONMALLOC"] = "malloc"
    try:
        answer: int | None = _ask(_allocated_child, build, args)
        return answer
    finally:
        if before is None:
            del os.environ["PYTHONMALLOC"]
        else:
            os.environ["PYTHONMALLOC"] = before


def in_fresh_process(function: Callable[..., Any], *args: object) -> Any:
    """Run a module-level function in a fresh process; return its result, which must be serializable as JSON."""
    return _ask(_plain_child, function, args)


def be_quick() -> None:
    """Make fresh processes and collections cheap, if figures do not matter: fork, and freeze all objects."""
    gc.freeze()
    if "fork" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("fork")


def _ask(child: Callable[..., None], build: Callable[..., Any], args: tuple[object, ...]) -> Any:
    context: Any = multiprocessing.get_context(multiprocessing.get_start_method(allow_none=True) or "spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, build, args))
    process.start()
    theirs.close()
    try:
        return json.loads(ours.recv())
    finally:
        process.join()


def _plain_child(pipe: Any, function: Callable[..., Any], args: tuple[object, ...]) -> None:
    pipe.send(json.dumps(function(*args)))


def _resident_child(pipe: Any, build: Build, args: tuple[object, ...]) -> None:
    _warm_up(build, args)
    fillers = _fill_holes()
    return_free_memory()
    before = resident()
    structure, figures = build(*args)
    return_free_memory()
    pipe.send(json.dumps([resident() - before, figures]))
    del structure, fillers


def _allocated_child(pipe: Any, build: Build, args: tuple[object, ...]) -> None:
    _warm_up(build, args)
    before = allocated()
    structure, _ = build(*args)
    gc.collect()
    after = allocated()
    pipe.send(json.dumps(None if before is None or after is None else after - before))
    del structure


def _fill_holes() -> list[bytes]:
    """Fill the free memory between used blocks, in Python's arenas and in ``malloc``'s heap."""
    fillers = [bytes(size - _BYTES_HEAD) for size in _SMALL if size > _BYTES_HEAD for _ in range(_FILLERS)]
    for size in _LARGE:
        while (info := _mallinfo()) is not None:
            fillers.append(bytes(size - _BYTES_HEAD))
            top = _mallinfo()
            if top is None or top.keepcost != info.keepcost:
                break  # no gap of this size is left: this block came from the end of the heap
    return fillers


def _warm_up(build: Build, args: tuple[object, ...]) -> None:
    structure, _ = build(*[_WARM_UP if isinstance(arg, int) and arg > _WARM_UP else arg for arg in args])
    del structure
    return_free_memory()
