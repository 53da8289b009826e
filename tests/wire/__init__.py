"""Tests of the wire: the codec, connections and clients on a scripted broker and virtual time."""
