"""The broker's protocol as bytes: frames, commands, entries, chunks and compression. No I/O."""
