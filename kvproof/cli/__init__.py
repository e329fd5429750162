"""The command line: a module for each command, and what they share.

Nothing is computed here; a command validates, calls, prints, and ends with its code.
"""
