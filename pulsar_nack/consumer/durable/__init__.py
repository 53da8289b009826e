"""The durable state of a consumer: deadlines, attempts and recent acknowledgements, on a store of logs.

Only imported when a consumer is made durable. From below: ``_records`` (bytes), ``_acked`` (acknowledged
messages), ``_state`` (these and the pending messages, pure), ``_generations`` (which logs are current), ``_journal``
(the one writer), ``_nacks`` (the calls of the consumer).

The bucket tracker of delayed messages was considered as the index, and rejected. It answers which messages are due;
the nack tracker, which has the messages that the broker delivered, answers that already. The questions here are what is
known of a message that arrives, and what has to be kept when a log ends. Packed columns answer both, in 23 to 42 bytes
a message, and are read back as they were written: a million in a second or two.
"""

from ._generations import OWNER_LOG, base_name, log_name
from ._journal import Outcome
from ._nacks import DurableHome, DurableNacks, check_home
from ._records import DEFERRED_FIRST, RECORD_VERSION, RangeAcks, Record, UnreadableRecordError, decode_record
from ._state import DurableState

__all__ = [
    "DEFERRED_FIRST",
    "OWNER_LOG",
    "RECORD_VERSION",
    "DurableHome",
    "DurableNacks",
    "DurableState",
    "Outcome",
    "RangeAcks",
    "Record",
    "UnreadableRecordError",
    "base_name",
    "check_home",
    "decode_record",
    "log_name",
]
