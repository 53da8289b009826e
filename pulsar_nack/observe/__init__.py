"""Optional integrations, one per file; none is imported unless it is asked for."""
