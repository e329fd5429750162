"""Bounds: what a scope may be at most, and how many actions one of its states may have."""

from __future__ import annotations

from kvproof.model.engine import MOST_ALONE
from kvproof.model.scope import Scope


def _drafts_choices(scope: Scope) -> int:
    return int((scope.num_speculative_tokens + 1) ** min(len(scope.requests), scope.max_num_seqs))


def output_choices(scope: Scope) -> int:
    """Bound on the outputs of one step: acceptances with their stops, times failed loads."""
    total = 1
    table = -(-scope.max_model_len // scope.block_size)
    ways = []
    for request in scope.requests:
        accepted = range(scope.num_speculative_tokens + 1)
        samples = sum(1 + (a + 1 if request.may_stop else 0) for a in accepted)
        external = request.external
        fails = scope.may_fail_loads and external is not None and not external.is_async
        ways.append(samples * (1 + table if fails else 1))
    for count in sorted(ways, reverse=True)[: scope.max_num_seqs]:
        total *= count
    return total


def max_actions(scope: Scope) -> int:
    """Bound on the actions enabled in one state."""
    requests = len(scope.requests)
    table = -(-scope.max_model_len // scope.block_size)
    transfers = requests * (2 + table) if scope.kv_role is not None else 0
    return (
        2 * requests + max(output_choices(scope), _drafts_choices(scope)) + transfers + MOST_ALONE
    )


def max_calls(scope: Scope) -> int:
    """Bound on the calls enabled in one state."""
    blocks = -(-scope.max_model_len // scope.block_size)
    transfers = 2 + blocks if scope.kv_role is not None else 0
    return len(scope.requests) * (2 + transfers) + MOST_ALONE
