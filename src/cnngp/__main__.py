"""`python -m cnngp` is the command line."""

from .cli import main

main()
