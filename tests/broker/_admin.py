"""The few calls of Pulsar's admin API that tests need, with the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


class AdminError(RuntimeError):
    """The admin API refused a request; ``status`` is the HTTP code."""

    def __init__(self, method: str, path: str, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"{method} {path}: {status} {reason}")


class Admin:
    """Admin calls on one broker; topics are given by their full names."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send one request below ``/admin/v2`` and return the decoded answer, None if it is empty."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._url}/admin/v2/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(method, path, error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if text else None

    def create_partitions(self, topic: str, count: int) -> None:
        """Make ``topic`` a partitioned topic."""
        self.request("PUT", f"{_path(topic)}/partitions", count)

    def delete(self, topic: str, *, partitioned: bool = False) -> None:
        """Remove a topic with all its subscriptions, connected or not."""
        self.request("DELETE", f"{_path(topic)}{'/partitions' if partitioned else ''}?force=true")

    def stats(self, topic: str) -> Any:
        """Return the broker's statistics of a topic without partitions."""
        return self.request("GET", f"{_path(topic)}/stats")

    def internal_stats(self, topic: str) -> Any:
        """Return the ledgers and cursors of a topic without partitions."""
        return self.request("GET", f"{_path(topic)}/internalStats")

    def subscription(self, topic: str, name: str) -> Any:
        """The statistics of one subscription: ``msgBacklog``, ``unackedMessages``, ``consumers``."""
        return self.stats(topic)["subscriptions"][name]

    def backlog(self, topic: str, name: str) -> int:
        """Return how many messages of a subscription are unacknowledged; members of batches count one by one."""
        stats = self.request("GET", f"{_path(topic)}/stats?getPreciseBacklog=true")
        return int(stats["subscriptions"][name]["msgBacklog"])

    def create_subscription(self, topic: str, name: str) -> None:
        """Add a subscription at the earliest message."""
        earliest = {"ledgerId": -1, "entryId": -1}
        self.request("PUT", f"{_path(topic)}/subscription/{_quoted(name)}", earliest)

    def reset_cursor(self, topic: str, name: str, at_ms: int) -> None:
        """Move a subscription back to the first message published at or after ``at_ms``, epoch milliseconds."""
        self.request("POST", f"{_path(topic)}/subscription/{_quoted(name)}/resetcursor/{at_ms}")

    def reset_cursor_to(self, topic: str, name: str, ledger: int, entry: int) -> None:
        """Move a subscription of a topic without partitions to an entry, which is delivered next."""
        place = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
        self.request("POST", f"{_path(topic)}/subscription/{_quoted(name)}/resetcursor", place)

    def skip(self, topic: str, name: str, count: int) -> None:
        """Acknowledge the next ``count`` messages of a subscription."""
        self.request("POST", f"{_path(topic)}/subscription/{_quoted(name)}/skip/{count}")

    def clear(self, topic: str, name: str) -> None:
        """Acknowledge all unacknowledged messages of a subscription."""
        self.request("POST", f"{_path(topic)}/subscription/{_quoted(name)}/skip_all")

    def expire(self, topic: str, name: str, seconds: int) -> None:
        """Acknowledge messages that are at least this old; refused if there are next to none."""
        self.request("POST", f"{_path(topic)}/subscription/{_quoted(name)}/expireMessages/{seconds}")

    def unload(self, topic: str) -> None:
        """Make the broker close a topic; its clients reconnect."""
        self.request("PUT", f"{_path(topic)}/unload")


def _path(topic: str) -> str:
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{_quoted(name)}"


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
