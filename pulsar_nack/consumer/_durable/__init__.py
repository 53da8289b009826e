"""What a consumer remembers over a restart: deadlines, attempts and recent acknowledgements, on a store of logs.

Imported when a consumer is made durable only. From below: ``_records`` (bytes), ``_unsettled`` and ``_settled`` (what
is remembered, packed), ``_memory`` (their sum, pure), ``_generations`` (which logs count), ``_journal`` (the one
writer), ``_nacks`` (what the consumer calls).
"""

from ._journal import Outcome
from ._nacks import DurableHome, DurableNacks, check_home

__all__ = ["DurableHome", "DurableNacks", "Outcome", "check_home"]
