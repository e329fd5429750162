"""What runs inside vLLM's interpreter: the driver of the real scheduler and all that it needs.

Imports vLLM and `workload`, and nothing else of this project.
"""
