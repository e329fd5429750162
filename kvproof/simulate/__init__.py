"""The multi-turn workload served by the real classes and by serQ, and the comparison of both.

The workload itself is in `workload`, what runs inside vLLM's interpreter in `vllm`.
"""
