"""How much memory pending nacks and delayed messages take, by formulas: the proposals' and that of our index."""

from ._index_size import predicted_bytes
from ._plan import Plan, PlanRow, Recommendation, format_size, make_plan
from ._proposals import old_bytes, proposal_bytes
from ._workload import Kind, Workload

__all__ = [
    "Kind",
    "Plan",
    "PlanRow",
    "Recommendation",
    "Workload",
    "format_size",
    "make_plan",
    "old_bytes",
    "predicted_bytes",
    "proposal_bytes",
]
