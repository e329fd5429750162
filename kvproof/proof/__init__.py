"""Invariants proved for all sizes with Z3: relations, induction, configurations, and the tie.

The relations are written by hand; `tie` holds them against the model.
"""
