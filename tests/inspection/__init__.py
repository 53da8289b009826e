"""Tests of the inspection of durable folders."""
