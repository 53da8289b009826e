"""How much memory pending nacks and delayed messages take, by formulas: the proposals' and that of our index.

Also how many buckets to keep of an index on storage.
"""

from ._bucket_plan import BucketPlan, make_bucket_plan
from ._bucket_size import BucketLoad, BucketSize, bucket_size
from ._index_size import predicted_bytes
from ._plan import Plan, PlanRow, Recommendation, format_size, make_plan, recommend
from ._proposals import old_bytes, proposal_bytes
from ._workload import Kind, Workload

__all__ = [
    "BucketLoad",
    "BucketPlan",
    "BucketSize",
    "Kind",
    "Plan",
    "PlanRow",
    "Recommendation",
    "Workload",
    "bucket_size",
    "format_size",
    "make_bucket_plan",
    "make_plan",
    "old_bytes",
    "predicted_bytes",
    "proposal_bytes",
    "recommend",
]
