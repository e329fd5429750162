"""A scope as the kernels read it, and the layouts of its states and reports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvproof.model import engine
from kvproof.model.mends import Mend
from kvproof.model.rules import Rule
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.model.state import REPORT, SCOPE, STATE, Branch
from kvproof.native.record import Layout, Record, Words

_EXTERNAL = "external_"
OF_WHAT_IS_SENT = (
    Rule.replace_resumed_table,
    Rule.send_resumed_as_new,
    Rule.send_table_growth,
    Rule.send_adopted_blocks,
    Rule.tell_finished_requests,
    Rule.tell_preempted_requests,
)
"""Rules of what the workers are sent: without one their tables are followed."""


@dataclass(frozen=True)
class Compiled:
    """A scope, compiled: `c` for the kernels, `state` the layout of a state, `prefixes` by code."""

    scope: Scope
    c: Record
    state: Layout
    report: Layout
    prefixes: tuple[tuple[str, tuple[int, ...]], ...]
    tokens: tuple[tuple[int, ...], ...]

    def initial(self) -> Record:
        """The state of a fresh engine."""
        state = self.state.new()
        engine.start(state, self.c)
        return state

    def new_report(self) -> Record:
        """An empty report."""
        return self.report.new()

    def read(self, row: Words) -> Record:
        """The state in a row."""
        return self.state.read(row)


def next_token(tokens: list[int], alphabet: int) -> int:
    """The greedy continuation: a fixed function of the prefix, in 1..alphabet."""
    return 1 + (sum(tokens) + len(tokens)) % alphabet


def _continued(prompt: tuple[int, ...], length: int, alphabet: int) -> tuple[int, ...]:
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens, alphabet))
    return tuple(tokens)


@lru_cache(maxsize=16)
def compile_scope(scope: Scope) -> Compiled:
    """Number the prefixes that can occur and lay out the records; equal scopes share the result."""
    length = scope.max_model_len + (scope.num_speculative_tokens + 1) * (scope.depth + 1) + 2
    tokens = [_continued(request.prompt, length, scope.alphabet) for request in scope.requests]

    codes: dict[tuple[str, tuple[int, ...]], int] = {}
    hash_codes: dict[tuple[str, tuple[int, ...]], int] = {}
    off = {Rule[name] for name in scope.rules_off}

    def hashed(salt: str, prefix: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """What the hash of a prefix tells apart."""
        if Rule.hash_includes_salt in off:
            salt = ""
        if Rule.hash_whole_prefix in off:
            # Only the last block: equal blocks behind different prefixes collide.
            start = (len(prefix) - 1) // scope.block_size * scope.block_size
            prefix = (0,) * start + prefix[start:]
        return salt, prefix

    for request, line in zip(scope.requests, tokens, strict=True):
        for n in range(1, length + 1):
            key = (request.salt or "", line[:n])
            if key not in codes:
                codes[key] = len(codes) + 1
    names = ["prefix", "prefix_hash"]
    tables = {name: np.zeros((len(tokens), length + 1), np.int32) for name in names}
    for r, (request, line) in enumerate(zip(scope.requests, tokens, strict=True)):
        for n in range(1, length + 1):
            key = (request.salt or "", line[:n])
            tables["prefix"][r, n] = codes[key]
            tables["prefix_hash"][r, n] = hash_codes.setdefault(hashed(*key), codes[key])

    table_len = -(-scope.max_model_len // scope.block_size)
    table_room = table_len
    if Rule.cap_slots_at_model_length in off:
        table_room += scope.num_speculative_tokens + scope.num_lookahead_tokens
    # Room for one table behind another: what a worker appends instead of replacing.
    worker_room = 0 if off.isdisjoint(OF_WHAT_IS_SENT) else 2 * table_room
    num_requests = len(scope.requests)
    sizes = {
        "R": num_requests,
        "B": scope.num_blocks,
        "N": table_room,
        "V": num_requests if worker_room else 0,
        "W": worker_room,
        "S": scope.block_size,
        "D": scope.depth,
        "Q": num_requests * (scope.depth + 1) if scope.defer_block_free else 1,
        "T": length + 1,
        "P": len(codes) + 1,
        "K": len(Rule),
        "M": len(Mend),
        "C": len(Branch),
    }
    c = SCOPE.layout(sizes).new()
    for name, value in _numbers(scope, table_len, sizes).items():
        setattr(c, name, int(value))
    for r, request in enumerate(scope.requests):
        for name, value in _request_numbers(scope, r, request).items():
            getattr(c, name)[r] = int(value)
    for name in names:
        getattr(c, name)[:] = tables[name]
    for (salt, prefix), code in codes.items():
        c.prefix_len[code] = len(prefix)
        c.shorter[code] = codes.get((salt, prefix[:-1]), 0)
        c.hash_of[code] = hash_codes[hashed(salt, prefix)]
    for rule in Rule:
        c.rules[int(rule)] = int(rule not in off)
    for mend in Mend:
        c.mends[int(mend)] = int(mend.name in scope.mends)
    return Compiled(
        scope=scope,
        c=c,
        state=STATE.layout(sizes),
        report=REPORT.layout(sizes),
        prefixes=(("", ()), *codes),
        tokens=tuple(tokens),
    )


def _numbers(scope: Scope, table_len: int, sizes: dict[str, int]) -> dict[str, int | bool]:
    """The single numbers: those of the scope's own name, and what follows from several."""
    return _same_named(scope, dims=()) | {
        "num_requests": len(scope.requests),
        "table_len": table_len,
        "table_room": sizes["N"],
        "worker_room": sizes["W"],
        "max_deferred": sizes["Q"],
        "input_budget": scope.max_num_batched_tokens,
        "priority_policy": scope.policy == "priority",
        "watermark_blocks": int(scope.watermark * scope.num_blocks),
        "drop_last_hit": scope.num_speculative_tokens > 0 and scope.spec_method == "eagle",
        "connector": scope.kv_role is not None,
        "requires_kv_delivery": scope.kv_role in ("kv_producer", "kv_both"),
        "recompute_load_failures": scope.kv_load_failure_policy == "recompute",
    }


def _request_numbers(scope: Scope, r: int, request: RequestSpec) -> dict[str, int | bool]:
    """A request's numbers: of its own name, of its external prefix, and what follows."""
    external = {} if request.external is None else _same_named(request.external, _EXTERNAL)
    return (
        _same_named(request)
        | external
        | {
            "prompt_len": len(request.prompt),
            "arrival": r if request.arrival is None else request.arrival,
            "twin": _twin(scope, r),
        }
    )


def _same_named(
    options: Scope | RequestSpec | External, prefix: str = "", dims: tuple[str, ...] = ("R",)
) -> dict[str, int | bool]:
    """The values that the compiled scope has under the name of an option, after a prefix."""
    return {
        field.name: getattr(options, field.name.removeprefix(prefix))
        for field in SCOPE.fields
        if field.dims == dims
        and field.name.startswith(prefix)
        and hasattr(options, field.name.removeprefix(prefix))
    }


def _twin(scope: Scope, r: int) -> int:
    """1 + the last equal request before r, 0 for none; such requests arrive in order."""
    for earlier in range(r - 1, -1, -1):
        if scope.requests[earlier] == scope.requests[r]:
            return earlier + 1
    return 0
