"""`python -m kvproof` is the command `kvproof`."""

from kvproof.cli.main import main

main()
