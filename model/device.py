"""The ghost device: which KV is really in which slot.

Not part of vLLM: it runs the dispatched steps first in, first out, each on the block table that it
was given, and lets transfers write in no order with them. A slot holds the prefix code of its KV;
0 is garbage. KV computed from garbage is garbage.

A step runs when its output is taken in, the latest moment that is possible. Running it earlier
shows nothing more: a transfer can land before or after it either way.
"""

from __future__ import annotations

from kvproof.model import worker
from kvproof.model.state import Load
from kvproof.native.jit import kernel


@kernel
def _slot(s, c, d, r, position):
    """Block of a position in the table that step d was given; 0 outside of the table."""
    place = position // c.block_size
    if position < 0 or place >= c.table_len:
        return 0
    return s.step_table[d, r, place]


@kernel
def _write(s, c, e, kv, d, r, garbage):
    """Write the KV of the step's tokens: known ones and accepted drafts are right."""
    certain = s.step_tokens[d, r] - s.step_drafts[d, r]
    for j in range(s.step_tokens[d, r]):
        position = s.step_start[d, r] - e.behind[r] + j
        b = _slot(s, c, d, r, position)
        if b == 0:
            continue
        right = position < s.step_known[d, r] if j < certain else j - certain < e.accepted[r]
        code = 0
        if right and not garbage:
            code = c.prefix[r, position + 1]
        kv[b, position % c.block_size] = code


@kernel
def _reads_right(s, c, e, kv, d, r):
    """Whether the step finds the KV of its own prefix at every position below its start."""
    start = s.step_start[d, r] - e.behind[r]
    for position in range(start):
        b = _slot(s, c, d, r, position)
        if b == 0 or kv[b, position % c.block_size] != c.prefix[r, position + 1]:
            return False
    certain = s.step_tokens[d, r] - s.step_drafts[d, r]
    return start + certain <= s.step_known[d, r]


@kernel
def run_step(s, c, e, kv, d):
    """Run step d on `kv`: synchronous loads, then all writes, then all reads.

    A layer writes the KV of the whole batch before it reads, so a request may read what another
    one of the same step writes. Sets e.misread.
    """
    for k in range(s.step_len[d]):
        r = s.step_order[d, k] - 1
        e.misread[r] = 0
        for position in range(
            s.step_load_start[d, r], s.step_load_start[d, r] + s.step_load_tokens[d, r]
        ):
            b = _slot(s, c, d, r, position)
            if b != 0:
                failed = position // c.block_size == e.load_fails[r] - 1
                kv[b, position % c.block_size] = 0 if failed else c.prefix[r, position + 1]
    for k in range(s.step_len[d]):
        r = s.step_order[d, k] - 1
        _write(s, c, e, kv, d, r, False)
    spreads = True
    while spreads:
        spreads = False
        for k in range(s.step_len[d]):
            r = s.step_order[d, k] - 1
            if not e.misread[r] and not _reads_right(s, c, e, kv, d, r):
                e.misread[r] = 1
                _write(s, c, e, kv, d, r, True)
                spreads = True


@kernel
def execute(s, c, e):
    """Run the oldest step; what it rejects moves the later steps of the same request back."""
    run_step(s, c, e, s.kv, 0)
    for k in range(s.step_len[0]):
        r = s.step_order[0, k] - 1
        drafts = s.step_drafts[0, r]
        e.position[r] = s.step_start[0, r] + s.step_tokens[0, r] - drafts
        if not s.step_samples[0, r]:
            continue
        known = e.position[r] + e.accepted[r] + 1
        for d in range(1, s.num_steps):
            if s.step_tokens[d, r] > 0 and s.step_stale[d, r] == s.step_stale[0, r]:
                s.step_start[d, r] -= drafts - e.accepted[r]
                s.step_known[d, r] = max(s.step_known[d, r], known)


@kernel
def run_in_flight(s, c, e, kv):
    """Run all in-flight steps on `kv`, every draft rejected; the state stays as it is."""
    for r in range(c.num_requests):
        e.accepted[r] = 0
        e.load_fails[r] = 0
    for d in range(s.num_steps):
        for k in range(s.step_len[d]):
            r = s.step_order[d, k] - 1
            e.behind[r] = 0
            for earlier in range(d):
                if s.step_samples[earlier, r] and s.step_stale[earlier, r] == s.step_stale[d, r]:
                    e.behind[r] += s.step_drafts[earlier, r]
        run_step(s, c, e, kv, d)


@kernel
def transfer_lands(s, c, r, bad):
    """The load of request r has written its blocks; `bad` is a block that failed, or -1."""
    for position in range(s.load_start[r], s.load_start[r] + s.load_tokens[r]):
        place = position // c.block_size
        b = s.transfer_table[r, place]
        if b != 0:
            s.kv[b, position % c.block_size] = 0 if place == bad else c.prefix[r, position + 1]
    s.load[r] = Load.LANDED if bad < 0 else Load.FAILED + bad


@kernel
def pop_step(s, c):
    """Forget the oldest step; the others move up."""
    last = s.num_steps - 1
    for d in range(last):
        s.step_len[d] = s.step_len[d + 1]
        for r in range(c.num_requests):
            s.step_order[d, r] = s.step_order[d + 1, r]
            s.step_tokens[d, r] = s.step_tokens[d + 1, r]
            s.step_start[d, r] = s.step_start[d + 1, r]
            s.step_drafts[d, r] = s.step_drafts[d + 1, r]
            s.step_acceptable[d, r] = s.step_acceptable[d + 1, r]
            s.step_samples[d, r] = s.step_samples[d + 1, r]
            s.step_stale[d, r] = s.step_stale[d + 1, r]
            s.step_known[d, r] = s.step_known[d + 1, r]
            s.step_load_start[d, r] = s.step_load_start[d + 1, r]
            s.step_load_tokens[d, r] = s.step_load_tokens[d + 1, r]
            for i in range(c.table_len):
                s.step_table[d, r, i] = s.step_table[d + 1, r, i]
    s.step_len[last] = 0
    for r in range(c.num_requests):
        s.step_order[last, r] = 0
        s.step_tokens[last, r] = 0
        s.step_start[last, r] = 0
        s.step_drafts[last, r] = 0
        s.step_acceptable[last, r] = 0
        s.step_samples[last, r] = 0
        s.step_stale[last, r] = 0
        s.step_known[last, r] = 0
        s.step_load_start[last, r] = 0
        s.step_load_tokens[last, r] = 0
        for i in range(c.table_len):
            s.step_table[last, r, i] = 0
    s.num_steps = last


@kernel
def _is_referenced(s, c, b):
    """Whether an in-flight step, a transfer or a worker's table may still touch block b."""
    for d in range(s.num_steps):
        for k in range(s.step_len[d]):
            r = s.step_order[d, k] - 1
            for i in range(c.table_len):
                if s.step_table[d, r, i] == b:
                    return True
    for r in range(c.num_requests):
        if s.load[r] or s.sending[r]:
            for i in range(c.table_len):
                if s.transfer_table[r, i] == b:
                    return True
    return c.worker_room != 0 and worker.may_touch(s, c, b)


@kernel
def forget_unreadable(s, c):
    """Make garbage of KV that nothing can read before it is written again.

    Two states that differ only there behave alike. Garbage is never taken for right, so no
    misread is hidden: free unpublished blocks, and slots at and past a request's computed tokens
    in blocks that it has for itself.
    """
    for b in range(1, c.num_blocks):
        if s.ref_cnt[b] == 0 and s.block_hash[b] == 0 and not _is_garbage(s, c, b):
            if not _is_referenced(s, c, b):
                for i in range(c.block_size):
                    s.kv[b, i] = 0
    if s.num_steps > 0:
        return
    for r in range(c.num_requests):
        if s.load[r] or s.sending[r] or s.num_blocks[r] == 0:
            continue
        first = s.num_computed[r] // c.block_size
        slot = s.num_computed[r] % c.block_size
        for place in range(first, min(s.num_blocks[r], c.table_len)):
            b = s.block_table[r, place]
            mine = s.ref_cnt[b] == 1 and s.block_hash[b] == 0
            if mine and not _is_garbage(s, c, b) and not _is_referenced(s, c, b):
                for i in range(slot, c.block_size):
                    s.kv[b, i] = 0
            slot = 0


@kernel
def _is_garbage(s, c, b):
    """Whether every slot of block b is garbage."""
    for i in range(c.block_size):
        if s.kv[b, i] != 0:
            return False
    return True
