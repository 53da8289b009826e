"""How long the broker and the machine themselves take to bring a message back, seen from a bare socket."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from types import ModuleType
from typing import Final

import pulsar

_BARE_SOCKET: Final = Path(__file__).parent.parent.parent / "benchmarks" / "_bare_socket.py"
_WARM_UP: Final = 600
"""A broker that was just started answers at a fifth of its later speed; after so many answers that is over."""


def answer_ms(url: str, topic: str) -> float:
    """Return the median ms from a redelivery request to the message, each after 0.4 s in which nothing is to do.

    A machine that sleeps meanwhile wakes up for each thread that the request passes. Uses the topic up.
    """
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_producer(topic).send(b"x")
    finally:
        client.close()
    bare = _bare_socket()
    bare.arrival(url, topic, "warm", _WARM_UP, 0.002)
    took: list[float] = bare.arrival(url, topic, "asleep", 6, 0.4)
    return statistics.median(took[1:])


def _bare_socket() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_bare_socket", _BARE_SOCKET)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
