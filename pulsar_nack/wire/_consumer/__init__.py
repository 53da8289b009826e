"""The consumer of the native client: sessions, arrivals, acknowledgements, redelivery, several topics."""
