"""Tests of the append-only logs."""
