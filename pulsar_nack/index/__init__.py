"""Positions and time: the only place that knows pyroaring and sortedcontainers."""
