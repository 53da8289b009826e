"""The schedule and the tracker, case by case."""
