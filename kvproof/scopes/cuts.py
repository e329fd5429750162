"""Cuts: the scopes that are one step smaller than a scope, and what smaller means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import msgspec

from kvproof.model.options import Options, ScopeError
from kvproof.model.scope import RequestSpec, Scope
from kvproof.scopes.values import EXTERNAL_VALUES, REQUEST_VALUES, SCOPE_VALUES, Values

_Changed = TypeVar("_Changed", bound=Options)

Measure = tuple[int, ...]
Cut = tuple[Scope, tuple[int, ...]]
"""A smaller scope and, for each of its requests, its number in the scope that was cut."""


def weight(scope: Scope) -> Measure:
    """What makes a violation hard to follow however short its run is: requests, depth, drafts."""
    return len(scope.requests), scope.depth, scope.num_speculative_tokens


def measure(scope: Scope) -> Measure:
    """How large a scope is; scopes are compared by the first number in which they differ.

    Weight, switches, requests' switches, their tokens, slots of the pool, block size, blocks,
    budgets, runner slots, model length, and how far the prompts are from all ones.
    """
    requests = scope.requests
    prompts = [request.prompt for request in requests]
    return (
        *weight(scope),
        _switches(scope, SCOPE_VALUES),
        sum(_request_switches(request) for request in requests),
        sum(len(request.prompt) + request.max_tokens for request in requests),
        (scope.num_blocks - 1) * scope.block_size,
        scope.block_size,
        scope.num_blocks,
        scope.max_num_batched_tokens,
        scope.token_budget,
        scope.max_num_seqs,
        scope.max_model_len,
        sum(sum(prompt) - len(prompt) for prompt in prompts),
        len(set(prompts)),
    )


def _rank(cut: Sequence[Any], value: Any) -> int:
    return cut.index(value) if value in cut else len(cut)


def _switches(options: Options, table: Mapping[str, Values]) -> int:
    return sum(_rank(values.cut, getattr(options, name)) for name, values in table.items())


def _request_switches(request: RequestSpec) -> int:
    external = request.external
    of_external = 0 if external is None else _switches(external, EXTERNAL_VALUES)
    return _switches(request, REQUEST_VALUES) + of_external


def _simpler(options: Options, table: Mapping[str, Values]) -> Iterator[tuple[str, Any]]:
    """Each switch that is not at its simplest, with every simpler value."""
    for name, values in table.items():
        for value in values.cut[: _rank(values.cut, getattr(options, name))]:
            yield name, value


def cuts(scope: Scope) -> Iterator[Cut]:
    """Every scope that is one cut smaller, in a fixed order, the largest cuts first."""
    everyone = tuple(range(len(scope.requests)))
    size = measure(scope)
    for kept in _fewer_requests(len(scope.requests)):
        smaller = _replace(scope, requests=tuple(scope.requests[r] for r in kept))
        if smaller is not None:
            yield smaller, kept
    for candidate in (*_features(scope), *_lengths(scope), *_bounds(scope), *_prompts(scope)):
        if candidate is not None and measure(candidate) < size:
            yield candidate, everyone


def _replace(options: _Changed, **changes: Any) -> _Changed | None:
    """The changed options, None where they make no sense."""
    try:
        return msgspec.structs.replace(options, **changes)
    except ScopeError:
        return None


def _with_request(scope: Scope, r: int, **changes: Any) -> Scope | None:
    changed = _replace(scope.requests[r], **changes)
    if changed is None:
        return None
    return _replace(scope, requests=(*scope.requests[:r], changed, *scope.requests[r + 1 :]))


def _fewer_requests(count: int) -> Iterator[tuple[int, ...]]:
    """One or two requests alone, then all but one."""
    for few in (1, 2):
        if few < count - 1:
            yield from combinations(range(count), few)
    if count > 1:
        for r in reversed(range(count)):
            yield tuple(other for other in range(count) if other != r)


def _down(value: int, low: int) -> Iterator[int]:
    """Smaller values from the lowest up: all where they are few, else at even distances."""
    step = max(1, (value - low) // 8)
    below = range(low, value, step)
    yield from below
    if step > 1 and below[-1] != value - 1:
        yield value - 1


def _features(scope: Scope) -> Iterator[Scope | None]:
    for name, value in _simpler(scope, SCOPE_VALUES):
        if name == "kv_role" and value is None:
            yield _without_connector(scope)
        else:
            yield _replace(scope, **{name: value})
    for r, request in enumerate(scope.requests):
        for name, value in _simpler(request, REQUEST_VALUES):
            yield _with_request(scope, r, **{name: value})
        if request.external is not None:
            for name, value in _simpler(request.external, EXTERNAL_VALUES):
                external = _replace(request.external, **{name: value})
                if external is not None:
                    yield _with_request(scope, r, external=external)


def _without_connector(scope: Scope) -> Scope | None:
    bare = tuple(
        msgspec.structs.replace(request, external=None, delay_free=False)
        for request in scope.requests
    )
    return _replace(scope, requests=bare, kv_role=None, may_fail_loads=False)


def _lengths(scope: Scope) -> Iterator[Scope | None]:
    """Shorter prompts and fewer outputs, with the model length drawn tight and without."""
    for r, request in enumerate(scope.requests):
        shorter = [
            _with_request(scope, r, prompt=request.prompt[:n])
            for n in _down(len(request.prompt), 1)
        ]
        shorter += [_with_request(scope, r, max_tokens=n) for n in _down(request.max_tokens, 1)]
        for candidate in shorter:
            if candidate is not None:
                yield _tightened(candidate)
                yield candidate


def _tightened(scope: Scope) -> Scope | None:
    longest = max(len(request.prompt) + request.max_tokens for request in scope.requests)
    length = min(scope.max_model_len, longest)
    threshold = min(scope.long_prefill_token_threshold, length)
    return _replace(scope, max_model_len=length, long_prefill_token_threshold=threshold)


def _bounds(scope: Scope) -> Iterator[Scope | None]:
    """A smaller pool, smaller blocks, smaller budgets."""
    longest_prompt = max(len(request.prompt) for request in scope.requests)
    for length in _down(scope.max_model_len, longest_prompt + 1):
        yield _replace(scope, max_model_len=length)
    for blocks in _down(scope.num_blocks, _blocks_needed(scope, scope.block_size)):
        yield _replace(scope, num_blocks=blocks)
    slots = (scope.num_blocks - 1) * scope.block_size
    for size in _down(scope.block_size, 1):
        for blocks in _down(slots // size + 2, _blocks_needed(scope, size)):
            yield _replace(scope, block_size=size, num_blocks=blocks)
    for tokens in _down(scope.max_num_batched_tokens, 1):
        yield _replace(scope, max_num_batched_tokens=tokens)
    if scope.max_num_scheduled_tokens is not None:
        for tokens in _down(scope.max_num_scheduled_tokens, 1):
            yield _replace(scope, max_num_scheduled_tokens=tokens)
    for seqs in _down(scope.max_num_seqs, 1):
        yield _replace(scope, max_num_seqs=seqs)
    for threshold in _down(scope.long_prefill_token_threshold, 1):
        yield _replace(scope, long_prefill_token_threshold=threshold)


def _blocks_needed(scope: Scope, block_size: int) -> int:
    return 1 + -(-scope.max_model_len // block_size)


def _prompts(scope: Scope) -> Iterator[Scope | None]:
    """Plainer prompts: all ones, another request's tokens, a single one."""
    for r, request in enumerate(scope.requests):
        prompt = request.prompt
        if any(token != 1 for token in prompt):
            yield _with_request(scope, r, prompt=(1,) * len(prompt))
        for other in scope.requests:
            known = min(len(prompt), len(other.prompt))
            yield _with_request(scope, r, prompt=other.prompt[:known] + prompt[known:])
        for i, token in enumerate(prompt):
            if token != 1:
                yield _with_request(scope, r, prompt=(*prompt[:i], 1, *prompt[i + 1 :]))
