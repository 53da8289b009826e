"""Readers and table views: topics read without acknowledgements."""
