"""`python -m cnngp` is the command line."""

from cnngp.cli import main

main()
