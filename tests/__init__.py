"""The tests of pulsar-nack."""
