"""One scope searched: the model as a system, its symmetry, what falls, and the smallest run to it.

Many scopes are `sweep`'s, single long runs are `walks`'.
"""
