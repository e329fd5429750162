"""Compiled code: the `kernel` decorator with its cache, and records of named integer fields.

Knows numba and nothing of this project; everything else may import it.
"""
