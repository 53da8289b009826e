"""Judges what the workers of a soak reported. Pure.

A message that is handled again after its acknowledgement was reported is wrong, unless the acknowledgement came while
another worker could have the message already: after the end of the lease, or if a connection broke since a worker first
had the message. Then the other worker may begin with it for some seconds more, as with any queue. Brokers also send a
few messages twice, to two consumers in the same instant, when a third one leaves or redelivers: both may handle these
few, the second one up to a second after the first.

A message is named by its number and its id, as ``7@3:0``: a producer that lost its connection sends unconfirmed
messages again, so a number may be stored as two messages.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection
from typing import Final

from pulsar_nack import MessageId

GRACE_S: Final = 20.0
"""How long a second worker may take to begin with a message that it had before the first acknowledged it."""
_MOST_TWINS: Final = 0.002
_TWIN_S: Final = 1.0
_MARGIN_S: Final = 2.0
"""How long after a connection broke a busy broker may give a message to a second worker."""
_MOST_GROWTH: Final = 24 * 1024 * 1024
"""Bytes by which a worker may grow: caches fill, and memory fragments."""


class Judge:
    """Follows each message, and collects what is wrong in :attr:`wrong`."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.counts = Counter[str]()
        self.settled: set[int] = set()
        """The numbers of acknowledged messages."""
        self.acked: dict[str, tuple[float, str]] = {}
        """When each message was first acknowledged, and who else could have it then: nobody, a twin, anybody."""
        self.repeated: dict[str, str] = {}
        """Messages that were begun after their acknowledgement, and who could have them."""
        self.memory: dict[int, list[tuple[float, int]]] = {}
        self._begun: dict[str, float] = {}
        """When each message was last begun."""
        self._first_begun: dict[str, float] = {}
        self._tried: set[int] = set()
        self._disturbed_at: list[float] = []

    def disturb(self, what: str, at: float) -> None:
        """Note that connections break, or that the broker unloads the topic."""
        self.counts[what] += 1
        self._disturbed_at.append(at)

    def note(self, slot: int, line: str) -> None:
        """Note a worker's report."""
        word, *numbers = line.split()
        self.counts[word] += 1
        if word == "begin":
            name, at = numbers[0], float(numbers[2])
            self._begun[name] = max(at, self._begun.get(name, at))
            self._first_begun[name] = min(at, self._first_begun.get(name, at))
            self._compare(name)
        elif word == "try":
            self._tried.add(number_of(numbers[0]))
        elif word == "acked":
            name, began, at = numbers[0], float(numbers[1]), float(numbers[2])
            others = {self._first_begun.get(name, began), self._begun.get(name, began)} - {began}
            began = min({began, *others})
            is_cut = any(began - _MARGIN_S < each < at for each in self._disturbed_at[-50:])
            is_twin = any(each < at for each in others)
            who = "anybody" if is_cut or numbers[3] != "1" else "a twin" if is_twin else "nobody"
            self.settled.add(number_of(name))
            self.acked.setdefault(name, (at, who))
            self._compare(name)
        elif word == "memory":
            self.memory.setdefault(slot, []).append((float(numbers[0]), int(numbers[1])))
        elif word == "leases":
            self.counts["leases"] += int(numbers[0]) - 1
        elif word == "tasks" and numbers[0] != "0":
            self.wrong.append(f"worker {slot} left {numbers[0]} tasks")

    def _compare(self, name: str) -> None:
        if name not in self.acked or name not in self._begun or name in self.repeated:
            return
        acked_at, who = self.acked[name]
        late_s = self._begun[name] - acked_at
        if late_s <= 0:
            return
        if who != "nobody" and late_s <= GRACE_S:
            self.repeated[name] = who
        elif who == "nobody" and late_s <= _TWIN_S:
            self.repeated[name] = "a twin"
        elif (text := f"{name} was handled {late_s:.3f} s after its acknowledgement was reported") not in self.wrong:
            self.wrong.append(text)

    def is_settled(self, sent: Collection[int]) -> bool:
        """Return whether all messages were acknowledged, as far as that was reported."""
        return len(self.settled) >= len(sent) and self._begun.keys() <= self.acked.keys()

    def end(self, sent: Collection[int], left: Collection[str]) -> None:
        """Judge the end: ``left`` are the messages that another consumer still gets."""
        for name in left:
            state = "was acknowledged and is there again" if name in self.acked else "was never settled"
            self.wrong.append(f"{name} {state}")
        twins = [name for name, who in self.repeated.items() if who == "a twin"]
        if len(twins) > max(_MOST_TWINS * len(self.acked), 3):
            self.wrong.append(f"{len(twins)} were handled again after redeliveries: {twins[:10]}")
        known = self.settled | self._tried | {number_of(name) for name in left}
        self.wrong += [f"{number} is lost" for number in sent if number not in known]

    def judge_memory(self, slot: int) -> tuple[int, int]:
        """Compare the memory of a worker that ran all the time, early and late; return both, in bytes."""
        samples = [size for _, size in self.memory.get(slot, [])]
        third = len(samples) // 3
        if not third:
            return 0, 0
        early, late = int(statistics.median(samples[third // 2 : third + 1])), int(statistics.median(samples[-third:]))
        if late - early > _MOST_GROWTH:
            self.wrong.append(f"worker {slot} grew from {early / 1e6:.1f} to {late / 1e6:.1f} MB")
        return early, late


def name_of(number: int, message_id: MessageId) -> str:
    """Return the name of a message for the judge."""
    return f"{number}@{message_id.ledger}:{message_id.entry}"


def number_of(name: str) -> int:
    """Return the number in a message's name."""
    return int(name.partition("@")[0])
