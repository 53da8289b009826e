"""Tests of the frameworks over Pulsar."""
