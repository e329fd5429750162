"""Our side of the real classes: the driver's client and environments, and every way to compare.

What runs inside vLLM's interpreter is in `vllm`.
"""
