"""Tests of what observes: metrics, logs, traces."""
