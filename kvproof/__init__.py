"""kvproof: a model checker for the vLLM v1 scheduler and its paged KV cache."""

__version__ = "0.1.0"
