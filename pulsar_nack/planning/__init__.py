"""How much memory pending nacks and delayed messages take, by the proposals' formulas and in our index.

Also how many buckets a bucket tracker should keep.
"""

from ._bucket_plan import BucketLoad, BucketPlan, BucketSize, bucket_size, make_bucket_plan
from ._plan import Plan, PlanRow, Recommendation, format_size, make_plan, recommend
from ._workload import Kind, Workload, old_bytes, predicted_bytes, proposal_bytes

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
