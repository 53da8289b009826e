"""Tests on a real Apache Pulsar broker, and what starts one."""
