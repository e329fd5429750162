"""Every way to make a scope: named ones, drawn ones, rows of a sweep, and cuts of a larger one.

Nothing here searches a scope or says what must hold in it.
"""
