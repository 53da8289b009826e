"""Connections to brokers: opening, authentication, TLS, requests, lookup, and the pool of a client."""
