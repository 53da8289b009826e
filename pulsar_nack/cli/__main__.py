"""``python -m pulsar_nack.cli``."""

from . import main

main()
