"""Frameworks over Pulsar, one module each; import the one that you use: ``pulsar_nack.integrations.taskiq``."""

__all__: list[str] = []
