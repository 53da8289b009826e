"""``pulsar-nack demo``: messages of a real broker come back at their own times while nacks keep coming."""

from ._command import demo

__all__ = ["demo"]
