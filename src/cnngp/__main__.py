"""Command line: `python -m cnngp`."""

from cnngp.cli import main

main()
