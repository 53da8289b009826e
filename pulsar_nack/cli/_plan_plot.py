"""The picture of a plan: memory over the width of buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from ..planning import Plan

_MIB: Final = 1 << 20


def save(plan: Plan, path: Path) -> None:
    """Draw into a file of the kind that its name says; needs no display.

    :raises OSError: it cannot be written
    """
    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes = figure.subplots()
    bits = [row.bits for row in plan.rows]
    low, high = (size / _MIB for size in plan.old_bytes)
    axes.fill_between(bits, low, high, color="0.8", linewidth=2, edgecolor="0.8", label="before the proposals")
    proposal = [row.proposal_bytes / _MIB for row in plan.rows]
    axes.plot(bits, proposal, color="#d55e00", marker="x", label="proposal's formula")
    axes.plot(bits, [row.bytes / _MIB for row in plan.rows], color="#0072b2", marker="o", label="pulsar-nack")
    best = plan.recommended
    axes.plot(
        [best.bits], [best.bytes / _MIB], "o", markersize=13, fillstyle="none", color="#009e73", label="recommended"
    )
    axes.set_yscale("log")
    axes.set_xlabel("bits (buckets of 2**bits ms)")
    axes.set_ylabel("memory (MiB)")
    workload = plan.workload
    axes.set_title(
        f"{plan.pending:,.0f} messages wait: {workload.rate:g} a second, share {workload.share:.3g}, "
        f"{workload.delay:g} s ({workload.kind})",
        fontsize=10,
    )
    axes.set_xticks(bits)
    axes.grid(visible=True, color="0.92")
    axes.set_axisbelow(True)
    axes.legend(fontsize=9)
    figure.savefig(path)
