"""The state of one unacknowledged message, and the lease of an attempt to handle it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..ids import MessageId, _merge_ids


class State(Enum):
    """Where an unacknowledged message is."""

    DELIVERED = "delivered"
    HELD = "negatively acknowledged"
    REQUESTED = "requested again"
    ACKING = "acknowledged"
    DEAD_LETTERING = "sent to the dead-letter topic"
    RETRYING = "sent to the retry topic"


# Constants for the hot path: Python 3.11 takes ten times as long to look up a member of an enumeration.
DELIVERED: Final = State.DELIVERED
HELD: Final = State.HELD
REQUESTED: Final = State.REQUESTED
ACKING: Final = State.ACKING
DEAD_LETTERING: Final = State.DEAD_LETTERING
RETRYING: Final = State.RETRYING
ACKED: Final = State.ACKING.value
NACKED: Final = State.HELD.value
DEAD_LETTERED: Final = State.DEAD_LETTERING.value
RETRIED: Final = State.RETRYING.value
DEFERRED: Final = "deferred"
VERBS: Final = {
    ACKED: "acknowledge",
    NACKED: "negative_acknowledge",
    DEAD_LETTERED: "dead_letter",
    RETRIED: "reconsume_later",
    DEFERRED: "defer",
}
"""How a message was settled, in the words of errors, and the verb of the consumer that does it."""
SENT_AWAY: Final = (State.DEAD_LETTERING, State.RETRYING)
"""On the way to another topic, and acknowledged once there."""


@dataclass(eq=False, repr=False, slots=True)
class MessageState:
    """One unacknowledged message: ``id`` as it was delivered, ``redelivery_count`` of its latest delivery to the user.

    A held message has no other objects than its state and id for the garbage collector, since there may be many.
    """

    id: MessageId
    state: State
    redelivery_count: int = 0
    hidden_count: int = 0
    """Redeliveries that the broker counts beyond ``redelivery_count``, for duplicates that were dropped."""
    deferred_count: int = 0
    """``redelivery_count`` of the last attempt that was deferred; the next attempt has the same."""
    nacked_attempt: int = 0
    """The last attempt that was nacked, also by its id, of which its Message does not know."""
    is_held: bool = False
    due_at_ms: int = 0
    """The deadline of the present hold, if it is held; the next two are of that hold too."""
    is_local: bool = False
    """It is redelivered from memory, whatever happens to the rest of its batch."""
    is_early: bool = False
    """Its timer fires the port's latency before ``due_at_ms``."""
    is_doubtful: bool = False
    """Delivered in an ended session and not in the present one: another consumer may have it, or has settled it."""
    request: int = 0
    """The number of its newest request, which expires at ``expires_at_ms``."""
    expires_at_ms: int = 0
    received_before: int | None = None
    """How many deliveries had been received when the newest request timed out."""
    before_ack: State | None = None
    is_guessed: bool = False
    """It was not known when it was acknowledged, so ``redelivery_count`` may be too low to distinguish attempts."""
    has_duplicate: bool = False
    """A delivery was dropped while an acknowledgement was pending."""
    is_due: bool = False
    """Its timer fired, or it was dropped before a call received it, while an acknowledgement was pending."""
    lease: Lease | None = None
    """The lease that runs, None: there is none, or it ended."""
    late: Lease | None = None
    """The lease that ended, until another attempt begins."""

    def learn(self, message_id: MessageId) -> None:
        """Add the chunks that an equal id names to the id kept here."""
        if message_id is not self.id and message_id.is_chunked:
            self.id = _merge_ids(self.id, message_id)

    def defer(self) -> None:
        """Note that the present attempt is deferred: the next one has the same count, whatever the broker counts."""
        self.deferred_count = self.redelivery_count
        self.redelivery_count -= 1
        self.hidden_count += 1

    def __repr__(self) -> str:
        return f"<MessageState of {self.id!r}: {self.state.value}, redelivered {self.redelivery_count} times>"


@dataclass(eq=False, slots=True)
class Lease:
    """How long one attempt of a message may take; see ``_leases``."""

    record: MessageState
    redelivery_count: int
    ends_at_ms: int
    has_ended: bool = False
    is_refused: bool = False
    """Whether a call of the late handler was refused; then all others are."""
