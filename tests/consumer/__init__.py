"""The consumer, on virtual time and on the embedded broker."""
