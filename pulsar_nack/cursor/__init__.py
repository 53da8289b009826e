"""Acknowledgement state of a subscription: what is acknowledged, kept small and durable."""

__all__: list[str] = []
