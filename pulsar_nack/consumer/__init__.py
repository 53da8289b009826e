"""Consumers: a port in front of a transport, and what the user holds in the hand."""

from ._port import ConsumerPort, Delivery, PortTraits

__all__ = ["ConsumerPort", "Delivery", "PortTraits"]
