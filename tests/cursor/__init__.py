"""Tests of acknowledgement state: the pure core, its records, the durable cursor, and the gate."""
