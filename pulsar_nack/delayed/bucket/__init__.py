"""Sealed buckets of delayed messages on storage (PIP-195)."""

__all__: list[str] = []
