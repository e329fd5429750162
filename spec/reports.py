"""Public reports that the model does not answer, each with the reason."""

from __future__ import annotations

NOT_MODELLED: tuple[tuple[str, str], ...] = (
    (
        "vllm#46283, vllm-ascend#16662, TensorRT-LLM#12116",
        "the end of a transfer is never reported: "
        "every transfer of the model ends, and is reported with the next output",
    ),
    ("TensorRT-LLM#13104", "a scheduled step that never runs: vLLM runs every step"),
    (
        "sglang-jax#982, sglang#20049",
        "a second release path and a second cache tier: vLLM has one "
        "path, and tiers are behind the connector",
    ),
    ("vllm#49449", "streaming sessions are not modelled"),
    ("vllm#18957", "nothing of a lookup is kept across a failed admission in this scheduler"),
    (
        "vllm#41177, vllm#24926",
        "the worker's copy of a request's tokens is not modelled; the driver "
        "compares what the scheduler sends",
    ),
    (
        "TensorRT-LLM#9931",
        "a preempted request is in no list from which it could be preempted again",
    ),
    ("vllm#47822, vllm#27462", "efficiency: a block or a slot less than possible is used"),
    (
        "vllm#43226",
        "a completion that arrives after its request is gone: the model's completions "
        "come once; with hold_blocks_until_load_done off the same assertion falls",
    ),
    ("vllm#23697, vllm#15041", "request ids are used once"),
    ("TensorRT-LLM#15018, sglang#35270", "other data structures: a radix tree and its statistics"),
    ("vllm-ascend#10699, tt-inference-server#4521", "custom schedulers"),
)
