"""Resident memory of a structure, measured in a fresh process for each."""

from __future__ import annotations

import gc
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident() -> int:
    """Return the resident bytes of this process; Linux only."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def grown_by(build: Callable[..., Any], *args: object) -> tuple[int, dict[str, Any]]:
    """Run ``build(*args)`` in a fresh process; return how many resident bytes its result takes.

    ``build`` returns the structure and a dict of its own figures, which is passed on. It is a module-level function.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, build, args))
    process.start()
    theirs.close()
    grown, figures = json.loads(ours.recv())
    process.join()
    return grown, figures


def _child(pipe: Any, build: Callable[..., Any], args: tuple[object, ...]) -> None:
    warm_up = build(*[1_000 if isinstance(arg, int) and arg > 1_000 else arg for arg in args])
    del warm_up
    gc.collect()
    before = resident()
    structure, figures = build(*args)
    gc.collect()
    after = resident()
    pipe.send(json.dumps([after - before, figures]))
    pipe.close()
    del structure
