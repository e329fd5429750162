"""Values of the options: what a scope is cut down to, swept over and drawn from.

An entry an option, in the order in which they are cut. Where the values of several options go
together, rows.py and draw.py put them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.model.scope import MAX_MODEL_LEN
from kvproof.scopes.cover import Value


@dataclass(frozen=True)
class Values:
    """Values of one option.

    `cut` has the simplest first, and a value that is not in it is the least simple; empty: the
    option is no switch. `sweep` has those of a parameter of its own, under `parameter` or the
    option's name. `draw` is picked from, where it depends on no other option; a value that stands
    there twice comes twice as often.
    """

    cut: Sequence[Any] = ()
    sweep: tuple[Value, ...] = ()
    parameter: str = ""
    draw: tuple[Any, ...] = ()


SCOPE_VALUES: Mapping[str, Values] = {
    "pipeline_parallel_size": Values(cut=(1, 2)),
    "async_scheduling": Values(cut=(False,)),
    "v2_model_runner": Values(cut=(False,)),
    "num_speculative_tokens": Values(cut=(0, 1, 2), sweep=(0, 1, 2, 3), parameter="drafts"),
    "spec_method": Values(
        cut=("ngram", "draft_model", "eagle"),
        sweep=("ngram", "eagle", "draft_model"),
        parameter="drafter",
    ),
    "kv_role": Values(cut=(None, "kv_consumer", "kv_producer", "kv_both")),
    "policy": Values(cut=("fcfs",), sweep=("fcfs", "priority"), draw=("fcfs", "priority")),
    "prefix_caching": Values(cut=(True,), sweep=(True, False), draw=(*(True,) * 4, False)),
    "chunked_prefill": Values(cut=(True,), sweep=(True, False), draw=(True, True, True, False)),
    "long_prefill_token_threshold": Values(cut=(0,), sweep=(0, 1, 2, 3), parameter="threshold"),
    "reserve_full_isl": Values(
        cut=(True,), sweep=(True, False), parameter="reserve full sequence", draw=(True, False)
    ),
    "watermark": Values(cut=(0.0,)),
    "max_num_scheduled_tokens": Values(cut=(None,)),
    "kv_load_failure_policy": Values(cut=("recompute",)),
    "may_fail_loads": Values(cut=(False,)),
    "may_reset": Values(cut=(False,), draw=(*(False,) * 4, True)),
    "may_reset_running": Values(cut=(False,)),
    "may_pause": Values(
        cut=(False,), sweep=(False, True), parameter="pause", draw=(*(False,) * 7, True)
    ),
    "alphabet": Values(cut=(2,)),
    "block_size": Values(sweep=(1, 2, 3)),
    "max_num_seqs": Values(sweep=(1, 2, 3), parameter="cap"),
    "name": Values(),
    "about": Values(),
    "requests": Values(),
    "num_blocks": Values(),
    "max_num_batched_tokens": Values(),
    "max_model_len": Values(),
    "rules_off": Values(),
    "mends": Values(),
}

REQUEST_VALUES: Mapping[str, Values] = {
    "external": Values(cut=(None,)),
    "delay_free": Values(cut=(False,)),
    "salt": Values(cut=(None,)),
    "may_stop": Values(cut=(False,), draw=(False, True)),
    "may_abort": Values(cut=(False,), draw=(False, True)),
    "priority": Values(cut=(0,)),
    "arrival": Values(cut=(None,)),
    "prompt": Values(),
    "max_tokens": Values(),
}

EXTERNAL_VALUES: Mapping[str, Values] = {
    "is_async": Values(cut=(True,)),
    "once": Values(cut=(False,)),
    "ask_later": Values(cut=range(4)),
    "tokens": Values(cut=range(MAX_MODEL_LEN + 1)),
}
