"""`python -m glagen`: the command line."""

from glagen.cli import main

main()
