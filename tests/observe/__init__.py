"""Tests of metrics, logs, spans and traces."""
