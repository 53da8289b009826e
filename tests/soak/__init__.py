"""A long run of workers that are killed, drained and cut off, and a check that nothing was lost or handled too often.

``python -m tests.soak`` runs for SOAK_SECONDS (1 800), on the broker at PULSAR_SERVICE_URL or on an embedded one.
"""
