"""Tests on a real Apache Pulsar broker, and the means to start one."""
