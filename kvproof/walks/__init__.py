"""Random runs of drawn scopes in compiled code, and what they reach.

The runs move a world; worlds of the real classes are in `bridge`.
"""
