"""What a consumer remembers over a restart: deadlines, attempts and recent acknowledgements, on a store of logs.

Imported when a consumer is made durable only. From below: ``_records`` (bytes), ``_unsettled`` (nacked and shown),
``_slices`` and ``_settled`` (acknowledged), ``_memory`` (their sum, pure), ``_generations`` (which logs count),
``_journal`` (the one writer), ``_ageing`` (the timer), ``_nacks`` (what the consumer calls).

The bucket tracker of delayed messages was considered as the index, and dropped. It answers what is due; that is asked
of the nack tracker, which holds what the broker has handed over. What is asked here is what is known of one message
that comes, and what has to be kept of all when a log ends. Packed columns answer both, in 23 to 42 bytes a message, and
are read back as they were written: a million in a second or two.
"""

from ._journal import Outcome
from ._nacks import DurableHome, DurableNacks, Surroundings, check_home

__all__ = ["DurableHome", "DurableNacks", "Outcome", "Surroundings", "check_home"]
