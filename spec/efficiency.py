"""Efficiency properties: what one would wish of a step and vLLM does not promise.

They are no invariants: none of them makes a run wrong, and a search goes on past them. The kernels
are in efficiency_steps, each under its property's name in snake case.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.spec.invariants import kernel_name
from kvproof.spec.masks import Efficiency


@dataclass(frozen=True, kw_only=True)
class EfficiencyProperty:
    """One wish in words, what it costs to go without, and what vLLM promises in its place."""

    name: str
    statement: str
    cost: str
    promised: str

    @property
    def id(self) -> Efficiency:
        """The property's number."""
        return Efficiency[self.name]

    @property
    def kernel_name(self) -> str:
        """The name of its kernel."""
        return kernel_name(self.name)


_SCHEDULER = "vllm/v1/core/sched/scheduler.py"

EFFICIENCY = (
    EfficiencyProperty(
        name="NobodyPassedOver",
        statement=(
            "In a step that preempts somebody, no running request is left out that the budgets "
            "and the free blocks would serve."
        ),
        cost=(
            "Under priorities the request at the cursor may be its own victim. The requests "
            "behind it, better ranked, are not looked at, though its blocks are free for them "
            "(vllm#26765, vllm#36390)."
        ),
        promised=(
            f"{_SCHEDULER}: schedule ends the scan of the running requests at the first one that "
            "gets no slots, its own preemption included"
        ),
    ),
    EfficiencyProperty(
        name="NoEmptyStep",
        statement=(
            "A step is not empty while a request, running or waiting, could run in it: the "
            "budgets, the request cap and the free blocks would serve it."
        ),
        cost="The device idles for a step, or computes for one request less.",
        promised=(
            f"{_SCHEDULER}: schedule admits nobody in a step that preempts, and nobody behind a "
            "waiting request that gets no slots; that something is scheduled in the end is NoStall"
        ),
    ),
    EfficiencyProperty(
        name="HoldersWithinCap",
        statement=(
            "A step that begins an asynchronous load leaves no more requests with blocks than may "
            "run at once."
        ),
        cost=(
            "What is loaded before there is a row for it keeps blocks that those which run may "
            "be preempted for."
        ),
        promised=(
            "vllm/config/scheduler.py: max_num_seqs bounds the sequences of one iteration, and "
            f"{_SCHEDULER}: schedule compares it with the running requests alone"
        ),
    ),
    EfficiencyProperty(
        name="IdleIsStill",
        statement=(
            "A paused engine that has no reason to step has no load under way that still writes."
        ),
        cost=(
            "A pause is acknowledged, and caches may be cleared or memory given back, while a "
            "transfer writes into blocks; whoever wants the blocks still has to wait for it."
        ),
        promised=(
            "vllm/v1/engine/core.py: _finish_pause promises an idle device, that is, its own "
            f"work synchronized; {_SCHEDULER}: get_num_unfinished_requests counts the running "
            "requests alone while new ones are paused, and none while all are"
        ),
    ),
    EfficiencyProperty(
        name="EndPublished",
        statement=(
            "A request that ends with an output leaves every full block published whose tokens "
            "are delivered and computed, drafts that this output accepts included."
        ),
        cost=(
            "The next turn of a conversation computes the last block of the answer again, though "
            "its KV is there."
        ),
        promised=(
            "vllm/v1/core/kv_cache_manager.py: allocate_slots publishes with the next step of a "
            "request, and the one that ends has none; vllm/v1/core/sched/async_scheduler.py: "
            "_update_request_with_output does it for all tokens but the last one delivered"
        ),
    ),
)
