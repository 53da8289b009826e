"""A local topic: its ledgers, and of each subscription what is left to be acknowledged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from ._report import CursorReport, SubscriptionReport, TopicLedger, TopicReport
from ._store import Store

_LEDGER: Final = re.compile(r"ledger-(\d{20})")
_CURSOR: Final = re.compile(r"subscription\.([A-Za-z0-9_.#-]+)-\d{10}(?:-snapshot)?")


def inspect_topic(store: Store, cursors: Sequence[CursorReport]) -> TopicReport | None:
    """Return the topic that a store is, None where it is none."""
    found = {int(match[1]): log for log in store.untaken() if (match := _LEDGER.fullmatch(log.name))}
    if not found:
        return None
    ledgers = []
    for ledger, log in sorted(found.items()):
        log.kind = "topic"
        ledgers.append(TopicLedger(ledger, log.scan.length, log.scan.size, log.scan.is_sealed))
        if ledgers[0].ledger < ledger and ledger - 1 not in found:
            store.note(log.name, "", "missing", "the ledger before it is missing")
    quoted = {match[1] for name in store.logs if (match := _CURSOR.fullmatch(name))}
    for log in store.untaken():  # of a subscription of which nothing was written yet
        if _CURSOR.fullmatch(log.name):
            log.kind = "cursor"
    by_name = {cursor.name: cursor for cursor in cursors}
    subscriptions = [_subscription(each, by_name.get(f"subscription.{each}"), ledgers) for each in sorted(quoted)]
    return TopicReport(tuple(ledgers), tuple(subscriptions))


def _subscription(quoted: str, cursor: CursorReport | None, ledgers: Sequence[TopicLedger]) -> SubscriptionReport:
    name = unquote(quoted.replace("#", "%"))
    if cursor is None:
        return SubscriptionReport(name, f"subscription.{quoted}", None, None)
    at_ledger, at_entry = cursor.mark_delete
    acked = {each.ledger: each.acked for each in cursor.ledgers}
    left = 0
    for each in ledgers:
        if each.ledger >= at_ledger:
            passed = at_entry + 1 if each.ledger == at_ledger else 0
            left += each.entries - passed - acked.get(each.ledger, 0)
    return SubscriptionReport(name, cursor.name, cursor.mark_delete, left)
