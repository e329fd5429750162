"""The search of any `System`: states and fingerprints, breadth first, and the graph that it leaves.

Knows no scheduler: two-phase commit is searched by the same code.
"""
