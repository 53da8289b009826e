"""Tests of the delayed delivery trackers."""
