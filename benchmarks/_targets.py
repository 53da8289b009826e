"""Keeps what is to be reached, and says at the end what was not."""

from __future__ import annotations


class Targets:
    """Figures that have to stay at or below a reach."""

    def __init__(self) -> None:
        self._checked = 0
        self._missed: list[str] = []

    def check(self, name: str, value: float | None, reach: float | None) -> float | None:
        """Note a figure, where there are both; return the reach."""
        if value is not None and reach is not None:
            self._checked += 1
            if value > reach:
                self._missed.append(f"{name}: {value:.3g} instead of {reach:g}")
        return reach

    def summary(self) -> str:
        """Return a sentence on all that was checked."""
        reached = self._checked - len(self._missed)
        missed = f" Not reached: {'; '.join(self._missed)}." if self._missed else ""
        return f"{reached} of {self._checked} figures are within reach.{missed}"


def ratio(ours: float | None, peer: float | None) -> float | None:
    """Return ours by the peer's."""
    return None if ours is None or not peer else ours / peer
