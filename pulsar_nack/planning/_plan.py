"""A table of bucket widths for a workload, and the width to choose."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import floor, log2
from typing import Any, Final

from .._check import check_integer
from ._workload import Kind, Workload, old_bytes, predicted_bytes, proposal_bytes

_MAX_BITS: Final = 62
_WIDEST_SHARE: Final = 8
"""A bucket should be at most an eighth of the delay wide, as with ``NackConfig.precision_ratio``."""
_WAKE_UPS: Final = 100.0
_SLACK: Final = 1.25
_SLACK_BYTES: Final = 1 << 20
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The consequences of buckets of ``2**bits`` ms."""

    bits: int
    width_ms: int
    buckets: float
    messages_per_bucket: float
    wake_ups_per_second: float
    is_fine: bool
    """Whether a bucket is at most an eighth of the delay wide."""
    bytes: float
    bytes_per_message: float
    proposal_bytes: float
    proposal_limit_bytes: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended bits, and the reason."""

    bits: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a workload: a row for each number of bits, and a recommendation."""

    workload: Workload
    bits: int
    pending: float
    old_bytes: tuple[float, float]
    rows: tuple[PlanRow, ...]
    recommendation: Recommendation

    @property
    def asked(self) -> PlanRow:
        """Return the row of the requested bits."""
        return self.rows[self.bits]

    @property
    def recommended(self) -> PlanRow:
        """Return the row of the recommended bits."""
        return self.rows[self.recommendation.bits]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return asdict(self) | {"asked": asdict(self.asked)}


def make_plan(workload: Workload, bits: int) -> Plan:
    """Plan a workload with buckets of ``2**bits`` ms, and compare with all other widths up to the delay.

    :raises InvalidArgumentError: ``bits`` is not an integer from 0 to 62
    """
    check_integer("bits", bits, 0, _MAX_BITS)
    longest = max(floor(log2(max(workload.delay * 1000, 1))), bits)
    rows = tuple(_row(workload, each) for each in range(longest + 1))
    return Plan(workload, bits, workload.pending, old_bytes(workload), rows, recommend(workload, rows))


def format_size(size: float) -> str:
    """Return a human-readable size with three digits or more, in units of 1 024."""
    size /= 1024
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.{0 if size >= 100 else 1 if size >= 10 else 2}f} {_UNITS[unit]}"


def _row(workload: Workload, bits: int) -> PlanRow:
    width = 1 << bits
    delay_ms = workload.delay * 1000
    held = predicted_bytes(workload, bits)
    per_ms = workload.pending / delay_ms
    return PlanRow(
        bits=bits,
        width_ms=width,
        buckets=max(delay_ms / width, 1),
        messages_per_bucket=per_ms * width,
        wake_ups_per_second=min(1000 / width, per_ms * 1000),
        is_fine=width == 1 or width * _WIDEST_SHARE <= delay_ms,
        bytes=held,
        bytes_per_message=held / workload.pending,
        proposal_bytes=proposal_bytes(workload, bits),
        proposal_limit_bytes=proposal_bytes(workload, bits, limit=True),
    )


def recommend(workload: Workload, rows: tuple[PlanRow, ...]) -> Recommendation:
    """Choose the finest buckets that are cheap: little memory, few wake-ups, and narrow enough for the delay.

    :param rows: for 0, 1, 2 and so on bits, predicted or measured
    """
    fine = [row for row in rows if row.is_fine]
    min_bytes = min(row.bytes for row in fine)
    cheap = [row for row in fine if row.bytes <= _affordable(min_bytes)]
    quiet = [row for row in cheap if row.wake_ups_per_second <= _WAKE_UPS]
    best = quiet[0] if quiet else fine[-1]
    return Recommendation(best.bits, _reason(workload, best, rows, min_bytes))


def _affordable(min_bytes: float) -> float:
    """Return how much memory finer buckets may take: a quarter or 1 MiB more than the least."""
    return max(_SLACK * min_bytes, min_bytes + _SLACK_BYTES)


def _reason(workload: Workload, best: PlanRow, rows: tuple[PlanRow, ...], min_bytes: float) -> str:
    off = best.width_ms - 1
    text = (
        f"messages are off by at most {off} ms ({off / workload.delay / 10:.2g} % of the delay), for "
        f"{format_size(best.bytes)} and at most {best.wake_ups_per_second:.3g} wake-ups a second. "
    )
    finer = rows[best.bits - 1] if best.bits else None
    coarser = rows[best.bits + 1] if best.bits + 1 < len(rows) else None
    if finer is not None and finer.bytes > _affordable(min_bytes):
        text += f"Finer buckets would take {format_size(finer.bytes)}"
    elif finer is not None and finer.wake_ups_per_second > _WAKE_UPS:
        text += f"Finer buckets would mean {finer.wake_ups_per_second:.3g} wake-ups a second"
    else:
        text += "There is nothing finer to gain"
    if coarser is not None and not coarser.is_fine:
        text += ", and wider ones would be more than an eighth of the delay."
    else:
        text += f", and the smallest index would save {format_size(best.bytes - min_bytes)}."
    setting = (
        f"negativeAckPrecisionBitCnt={best.bits}"
        if workload.kind == Kind.NACK
        else f"delayedDeliveryTickTimeMillis={best.width_ms}"
    )
    return f"Set {setting}: {text}"
