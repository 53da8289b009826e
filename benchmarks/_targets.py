"""Compares figures with their targets, and reports which targets were missed."""

from __future__ import annotations


class Targets:
    """Figures that should be at most as large as their targets."""

    def __init__(self) -> None:
        self._checked = 0
        self._missed: list[str] = []

    def check(self, name: str, value: float | None, target: float | None) -> float | None:
        """Compare a figure with its target, unless one of them is None; return the target."""
        if value is not None and target is not None:
            self._checked += 1
            if value > target:
                self._missed.append(f"{name}: {value:.3g} instead of {target:g}")
        return target

    def summary(self) -> str:
        """Return a sentence about all figures."""
        met = self._checked - len(self._missed)
        missed = f" Missed: {'; '.join(self._missed)}." if self._missed else ""
        return f"{met} of {self._checked} figures meet their targets.{missed}"


def ratio(ours: float | None, peer: float | None) -> float | None:
    """Return our figure divided by the peer's; None if one of them is missing."""
    return None if ours is None or not peer else ours / peer
