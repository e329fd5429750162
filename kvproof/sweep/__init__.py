"""Scopes that cover the combinations of options, each searched, and what falls in them.

The rows and the scopes that they stand for are in `scopes`.
"""
