"""Memory of what was fetched ahead by all consumers of a client, and for how many more messages there is some.

Free memory is shared out evenly: a consumer lets the broker send as many messages as fit into its share by the mean
size of its own. Until it knows that, each is taken to be as large as the broker allows. So what is here stays below the
bound where sizes are alike; where they grow at once, or all consumers fill up together, it goes beyond by what was
permitted before.
"""

from __future__ import annotations


class Prefetched:
    """Of one client.

    :param max_bytes: None: no bound
    """

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """Of the payloads that are here and not taken."""
        self.consumers = 0
        """How many share the memory: those that are subscribed."""

    def fitting(self, mean_bytes: int) -> int:
        """Return for how many messages more of such a size a consumer has memory."""
        assert self.max_bytes is not None
        return max(self.max_bytes - self.bytes, 0) // (max(self.consumers, 1) * max(mean_bytes, 1))
