"""The workers' block tables, made of nothing but what the steps send.

Stands for _update_states of vllm/v1/worker/gpu_model_runner.py (V1) and for finish_requests,
add_requests and update_requests of vllm/v1/worker/gpu/model_runner.py (V2). They are followed only
while a rule of what is sent is off; with all on, a worker's table is the scheduler's own.
"""

from __future__ import annotations

from kvproof.model.rules import Rule
from kvproof.native.jit import kernel


@kernel
def take(s, c, e):
    """The workers take in the step that is being sent: who is told of, then each request of it."""
    for r in range(c.num_requests):
        if s.finished_note[r] and c.rules[Rule.tell_finished_requests]:
            _forget(s, c, r)
        if s.preempted_note[r] and c.v2_model_runner and c.rules[Rule.tell_preempted_requests]:
            _forget(s, c, r)
    for k in range(e.num_scheduled):
        _update(s, c, e, e.order[k] - 1)


@kernel
def _update(s, c, e, r):
    """What the step sends of one request replaces what is known of it, or is appended."""
    if e.admitted[r] == 0:
        first = e.first_new[r] if c.rules[Rule.send_table_growth] else s.num_blocks[r]
        replaces = False
    else:
        first = 0 if c.rules[Rule.send_adopted_blocks] else e.first_new[r]
        if e.admitted[r] == 1:
            replaces = True
        elif c.v2_model_runner:
            replaces = c.rules[Rule.send_resumed_as_new] != 0
        else:
            replaces = c.rules[Rule.replace_resumed_table] != 0
    if replaces:
        _forget(s, c, r)
        s.worker_len[r] = 1
    if s.worker_len[r] == 0:
        return
    for i in range(first, min(s.num_blocks[r], c.table_room)):
        if s.worker_len[r] <= c.worker_room:
            s.worker_table[r, s.worker_len[r] - 1] = s.block_table[r, i]
            s.worker_len[r] += 1


@kernel
def _forget(s, c, r):
    for i in range(c.worker_room):
        s.worker_table[r, i] = 0
    s.worker_len[r] = 0


@kernel
def may_touch(s, c, b):
    """Whether block b stands in a table of the workers."""
    for r in range(c.num_requests):
        for i in range(s.worker_len[r] - 1):
            if s.worker_table[r, i] == b:
                return True
    return False
