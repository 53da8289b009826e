"""The producer of the native client: sessions with the broker, batches, chunks, routing, what awaits its receipt."""
