"""``python -m pulsar_nack``: the command line."""

from .cli import main

main()
