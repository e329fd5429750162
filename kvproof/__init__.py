"""kvproof: can any order of events make vLLM's scheduler and KV cache do something wrong?"""
