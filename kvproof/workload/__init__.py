"""Multi-turn sessions on a simulated clock: settings, arrivals, and the loop that serves them.

Imports nothing of this project, so that vLLM's interpreter can run it too.
"""
