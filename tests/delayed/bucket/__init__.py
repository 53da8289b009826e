"""Tests of the bucket tracker."""
