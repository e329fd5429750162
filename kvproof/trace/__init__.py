"""One run of a scope: named actions, traces and lassos as files, as text, and for other viewers.

Nothing here looks for a run; the model takes every action again when a trace is read.
"""
