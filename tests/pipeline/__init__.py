"""Tests of the pipeline, on one local Spark session."""
