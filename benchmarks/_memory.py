"""Memory of a structure, measured in fresh processes.

Two figures are taken, each in processes of its own:

- *resident*: by how much the resident pages of the process grow. Small structures would hide in memory that the
  interpreter has used at its start and given back, so before the first look a small copy is built and dropped, free
  memory is returned to the system, and the holes in Python's own arenas are filled. What is left of the noise makes
  the figure too small rather than too large, so several processes are asked and the largest answer counts.
- *allocated*: by how much the bytes in use grow that glibc's ``malloc`` knows of (``mallinfo2``), in a process in which
  Python takes every object from ``malloc`` too. This is exact, without fragmentation and free pages.
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
"""Returns the structure and a dict of its own figures; a module-level function."""

_WARM_UP = 60_000
_FILLERS = 2_000
_SMALL = range(16, 513, 16)
"""The sizes of Python's own allocator."""
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
    """Return the resident bytes of this process that are its own, not those of files; Linux only."""
    return _status("RssAnon")


def peak_resident() -> int:
    """Return the largest number of resident bytes that this process has had; Linux only."""
    return _status("VmHWM")


def reset_peak() -> int:
    """Let :func:`peak_resident` tell of what comes from now on; return what it tells now; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_resident()


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def allocated() -> int | None:
    """Return the bytes in use that ``malloc`` has given out; None without glibc 2.33 or later."""
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
    """Collect garbage, and let glibc give its free pages back to the system."""
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def grown_by(build: Build, *args: object, processes: int = 1) -> tuple[int, dict[str, Any]]:
    """Run ``build(*args)`` in fresh processes; return the most resident bytes of its result, and its figures."""
    answers = [_ask(_resident_child, build, args) for _ in range(processes)]
    return max(grown for grown, _ in answers), answers[-1][1]


def allocated_by(build: Build, *args: object) -> int | None:
    """Run ``build(*args)`` in a fresh process; return the bytes of its result by ``malloc``, None if unknown."""
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
    """Return what a module-level function returns in a fresh process; anything that JSON can carry."""
    return _ask(_plain_child, function, args)


def be_quick() -> None:
    """Make fresh processes and collections cheap from now on, where figures mean nothing: forks, and all frozen."""
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
    """Take the free memory that lies between what is in use: of Python's arenas, and of ``malloc``'s heap."""
    fillers = [bytes(size - _BYTES_HEAD) for size in _SMALL if size > _BYTES_HEAD for _ in range(_FILLERS)]
    for size in _LARGE:
        while (info := _mallinfo()) is not None:
            fillers.append(bytes(size - _BYTES_HEAD))
            top = _mallinfo()
            if top is None or top.keepcost != info.keepcost:
                break  # no hole of this size is left: this came from the end of the heap
    return fillers


def _warm_up(build: Build, args: tuple[object, ...]) -> None:
    structure, _ = build(*[_WARM_UP if isinstance(arg, int) and arg > _WARM_UP else arg for arg in args])
    del structure
    return_free_memory()
