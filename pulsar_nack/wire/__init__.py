"""Apache Pulsar's own protocol over asyncio, without the official client."""

__all__: list[str] = []
