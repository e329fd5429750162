"""`python -m kvproof` is the command `kvproof`."""

from kvproof.cli import main

main()
