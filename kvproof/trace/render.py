"""Traces as text: one line an action with what changed, and the blocks as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.options import told
from kvproof.model.scope import Scope
from kvproof.model.state import Assertion, Load, Phase, Status
from kvproof.native.record import Record
from kvproof.trace.trace import Moment, Trace, TraceError, not_followed, replay

_COUNTERS = (
    ("num_tokens", "tokens"),
    ("num_computed", "computed"),
    ("placeholders", "placeholders"),
    ("num_drafts", "drafts"),
    ("stale", "stale"),
)


def _table(state: Record, r: int) -> list[int]:
    return [int(b) for b in state.block_table[r, : int(state.num_blocks[r])]]


def _request_changes(before: Record, after: Record, r: int) -> str:
    parts = []
    old, new = Status(int(before.status[r])), Status(int(after.status[r]))
    if old != new:
        parts.append(new.name.lower())
    if new != Status.GONE:
        for field, word in _COUNTERS:
            a, b = int(getattr(before, field)[r]), int(getattr(after, field)[r])
            if a != b:
                parts.append(f"{word} {a}->{b}")
    if _table(before, r) != _table(after, r):
        parts.append(f"blocks {_table(after, r) or 'none'}")
    if before.load[r] != after.load[r]:
        parts.append(f"load {Load(min(int(after.load[r]), Load.FAILED)).name.lower()}")
    return f"R{r} {', '.join(parts)}" if parts else ""


def changes(moment: Moment) -> str:
    """What one action changed, in words."""
    before, after, report = moment.before, moment.after, moment.report
    parts = []
    if moment.action.do == "schedule":
        scheduled = [int(r) - 1 for r in report.order[: int(report.num_scheduled)]]
        listed = ", ".join(
            f"R{r} [{report.start[r]}..{report.start[r] + report.scheduled[r]})"
            + (f" with {report.drafts[r]} drafts" if report.drafts[r] else "")
            for r in scheduled
        )
        parts.append(f"step: {listed or 'empty'}")
        for victim in report.victims[: int(report.num_victims)]:
            parts.append(f"preempted R{int(victim) - 1}")
    parts += [
        change for r in range(len(after.status)) if (change := _request_changes(before, after, r))
    ]
    free_before = [int(b) for b in before.free_queue[: before.num_free]]
    free_after = [int(b) for b in after.free_queue[: after.num_free]]
    if free_before != free_after:
        parts.append(f"free {free_after}")
    if after.num_deferred != before.num_deferred:
        parts.append(f"deferred frees {after.num_deferred}")
    if after.assertion and not before.assertion:
        parts.append(f"assertion {Assertion(after.assertion).name.lower()}")
    if after.misread and not before.misread:
        parts.append(f"R{after.misread - 1} read KV of another prefix")
    if after.wrong_output and not before.wrong_output:
        parts.append(f"R{after.wrong_output - 1} was given a token out of place")
    return "; ".join(parts) or "nothing"


def _prefix(compiled: Compiled, code: int) -> str:
    if code == 0:
        return "-"
    salt, tokens = compiled.prefixes[code]
    return (f"{salt}:" if salt else "") + "".join(str(t) if t < 10 else f"({t})" for t in tokens)


def blocks_table(compiled: Compiled, state: Record) -> list[str]:
    """One line a block: references, published prefix, who holds it, and the KV of each slot."""
    rows = [("block", "refs", "published", "held by", "KV in its slots")]
    free = [int(b) for b in state.free_queue[: state.num_free]]
    for b in range(1, compiled.scope.num_blocks):
        holders = [
            f"R{r}[{i}]"
            for r in range(len(state.status))
            for i, held in enumerate(_table(state, r))
            if held == b
        ]
        for q in range(state.num_deferred):
            if b in state.deferred_blocks[q, : int(state.deferred_len[q])]:
                holders.append(f"fence {state.deferred_fence[q]}")
        if b in free:
            holders.append(f"free #{free.index(b) + 1}")
        slots = " ".join(_prefix(compiled, int(code)) for code in state.kv[b])
        rows.append(
            (
                str(b),
                str(state.ref_cnt[b]),
                _prefix(compiled, int(state.block_hash[b])),
                ", ".join(holders) or "nobody",
                slots,
            )
        )
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


_IN_THE_HEAD = {
    *("name", "about", "requests", "num_blocks", "block_size", "max_num_batched_tokens"),
    *("max_num_scheduled_tokens", "max_num_seqs", "max_model_len", "policy"),
    *("num_speculative_tokens", "kv_role", "rules_off", "mends"),
}
_IN_THE_LINE = {"prompt", "max_tokens", "priority", "external"}


def scope_lines(trace: Trace) -> list[str]:
    """The scope in a few lines: bounds, every option that is not at its default, requests, rules.

    Nothing is left out: who reads them can write the scope down again.
    """
    scope = trace.scope
    batched = scope.max_num_batched_tokens
    of_batched = "" if scope.max_num_scheduled_tokens is None else f" of {batched}"
    head = [
        f"scope {scope.name}: {scope.num_blocks - 1} blocks of {scope.block_size}",
        f"budget {scope.token_budget}{of_batched}",
        f"at most {scope.max_num_seqs} running",
        f"model length {scope.max_model_len}",
        scope.policy,
        f"depth {scope.depth}",
        *told(scope, only=("num_speculative_tokens", "kv_role")),
    ]
    options = told(scope, besides=_IN_THE_HEAD)
    return [
        ", ".join(head),
        *([f"  about: {scope.about}"] if scope.about else []),
        *([f"  options: {', '.join(options)}"] if options else []),
        *(_request_line(scope, r) for r in range(len(scope.requests))),
        f"rules off: {', '.join(scope.rules_off) or 'none'}",
        *([f"mends: {', '.join(scope.mends)}"] if scope.mends else []),
    ]


def _request_line(scope: Scope, r: int) -> str:
    request = scope.requests[r]
    parts = [f"prompt {list(request.prompt)}", f"at most {request.max_tokens} tokens"]
    if scope.policy == "priority" or request.priority:
        parts.append(f"priority {request.priority}")
    parts += told(request, besides=_IN_THE_LINE)
    if request.external is not None:
        tokens, *more = told(request.external)
        parts.append(f"{tokens} ({', '.join(more)})" if more else tokens)
    return f"  R{r}: {', '.join(parts)}"


def render(trace: Trace, moments: Iterable[Moment] | None = None) -> str:
    """The whole trace as text, from what was observed of it or else on the model.

    TraceError where an action is not enabled, and the model made the trace.
    """
    compiled = compile_scope(trace.scope)
    lines = [*scope_lines(trace), ""]
    last = None
    width = max((len(str(action)) for action in trace.actions), default=0)
    for moment in _as_far_as_it_goes(trace) if moments is None else moments:
        lines.append(f"{moment.number:3}  {str(moment.action).ljust(width)}  {changes(moment)}")
        if moment.broken:
            lines.append(f"     broken: {', '.join(moment.broken)}")
        last = moment
    if trace.recorded_on:
        lines += ["", f"recorded on vLLM {trace.recorded_on}"]
        if (parts := not_followed(trace)) is not None:
            lines.append(parts)
    state = compiled.initial() if last is None else last.after
    if last is not None:
        lines += ["", "blocks before the last action:"]
        lines += [f"  {line}" for line in blocks_table(compiled, last.before)]
    lines += ["", "blocks at the end:"]
    lines += [f"  {line}" for line in blocks_table(compiled, state)]
    if state.phase != Phase.TOP and state.num_steps:
        lines.append(f"in flight: {state.num_steps} steps")
    return "\n".join(lines) + "\n"


def _as_far_as_it_goes(trace: Trace) -> Iterator[Moment]:
    """The trace on the model, which need not follow what the real classes did."""
    try:
        yield from replay(trace)
    except TraceError:
        if not trace.recorded_on:
            raise
