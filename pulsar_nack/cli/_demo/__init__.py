"""``pulsar-nack demo``: failed messages come back on time while nacks keep coming."""

from ._command import demo

__all__ = ["demo"]
