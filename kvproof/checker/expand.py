"""Kernels of a search: successors of rows, what rows break, and what progress asks of both."""

from __future__ import annotations

from kvproof.checker.symmetry import rename_blocks
from kvproof.model import engine
from kvproof.native.jit import kernel
from kvproof.native.record import at
from kvproof.spec import masks, progress_labels
from kvproof.spec.progress_labels import ENGINE, PASSES


@kernel
def _copy(source, i, target, j):
    for k in range(source.shape[1]):
        target[j, k] = source[i, k]


@kernel
def expand(rows, like, c, e, w, names, actions, work, out_rows, parent, action, broken, kinds):
    """All successors of the rows, canonical if there is room for `names`; returns how many."""
    n = 0
    for m in range(rows.shape[0]):
        before = at(like, rows, m)
        for k in range(engine.enabled_actions(before, c, actions)):
            _copy(rows, m, work, 0)
            after = at(like, work, 0)
            engine.apply(after, c, e, actions[k])
            broken[n] = masks.check_step(before, after, c, e, w, actions[k])
            _copy(work, 0, out_rows, n)
            if len(names):
                rename_blocks(after, at(like, out_rows, n), c, names)
            parent[n] = m
            action[n] = actions[k]
            kinds[engine.kind_of(actions[k])] += 1
            n += 1
    return n


@kernel
def check_rows(rows, like, c, w, broken):
    """Fill the masks of the state invariants that the rows break."""
    for m in range(rows.shape[0]):
        broken[m] = masks.check_state(at(like, rows, m), c, w)


@kernel
def look_at_states(rows, like, c, due, transfers, waiting):
    """Fill the masks of each state; returns how many states cut their runs short."""
    cut = 0
    for m in range(rows.shape[0]):
        s = at(like, rows, m)
        transfers[m] = progress_labels.in_transfer(s, c)
        waiting[m] = progress_labels.waiting(s, c)
        due[m] = 0
        if progress_labels.is_cut(s):
            cut += 1
        else:
            due[m] = progress_labels.due(s, c)
    return cut


@kernel
def look_at_steps(rows, successors, like, c, e, parent, action, labels, goes_on, passed):
    """Fill the label of each transition and what it passes; note the states that have one."""
    passes = 0
    for k in range(successors.shape[0]):
        before = at(like, rows, parent[k])
        after = at(like, successors, k)
        labels[k] = progress_labels.label(before, after, c, e, action[k])
        if labels[k] & ENGINE:
            goes_on[parent[k]] = True
        if labels[k] & PASSES:
            passed[passes] = progress_labels.passed(before, after, c)
            passes += 1
    return passes


@kernel
def look_at_efficiency(rows, like, c, e, work, parent, action, tested, missed):
    """Take each action once more, for its report; fill the masks of what the steps miss."""
    for k in range(len(action)):
        before = at(like, rows, parent[k])
        _copy(rows, parent[k], work, 0)
        after = at(like, work, 0)
        engine.apply(after, c, e, action[k])
        missed[k] = masks.check_efficiency(before, after, c, e, action[k], tested)
