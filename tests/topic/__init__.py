"""Tests of local topics: the pure dispatcher, and topics on real files."""
