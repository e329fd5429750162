"""Canonical states: blocks are interchangeable, so they are renamed in a fixed order.

Blocks differ only in the order in which they stand in the free queue and in the tables that own
them. Renaming them in the order free queue, block tables, deferred frees brings every state that
differs only in block numbers to the same bytes, without a search.
"""

from __future__ import annotations

from kvproof.native.jit import kernel


@kernel
def _name(names, b, next_name):
    if b > 0 and names[b] == 0:
        names[b] = next_name
        return next_name + 1
    return next_name


@kernel
def _choose_names(s, c, names):
    """Fill names[old] = new for every block; the null block keeps its number."""
    for b in range(c.num_blocks):
        names[b] = 0
    name = 1
    for i in range(s.num_free):
        name = _name(names, s.free_queue[i], name)
    for r in range(c.num_requests):
        for i in range(min(s.num_blocks[r], c.table_room)):
            name = _name(names, s.block_table[r, i], name)
    for q in range(s.num_deferred):
        for i in range(s.deferred_len[q]):
            name = _name(names, s.deferred_blocks[q, i], name)
    # A leaked block keeps its place among the leaked.
    for b in range(1, c.num_blocks):
        name = _name(names, b, name)


@kernel
def rename_blocks(s, out, c, names):
    """Write state `s` to `out` (another row, same layout, a copy of s) with renamed blocks.

    `names` (num_blocks,) is filled with the new name of each block.
    """
    _choose_names(s, c, names)
    for i in range(s.num_free):
        out.free_queue[i] = names[s.free_queue[i]]
    for b in range(1, c.num_blocks):
        new = names[b]
        out.ref_cnt[new] = s.ref_cnt[b]
        out.block_hash[new] = s.block_hash[b]
        out.hash_rank[new] = s.hash_rank[b]
        for i in range(c.block_size):
            out.kv[new, i] = s.kv[b, i]
    for r in range(c.num_requests):
        for i in range(min(s.num_blocks[r], c.table_room)):
            out.block_table[r, i] = names[s.block_table[r, i]]
        if s.load[r] or s.sending[r]:
            for i in range(c.table_len):
                out.transfer_table[r, i] = names[s.transfer_table[r, i]]
    for q in range(s.num_deferred):
        for i in range(s.deferred_len[q]):
            out.deferred_blocks[q, i] = names[s.deferred_blocks[q, i]]
    if c.worker_room:
        for r in range(c.num_requests):
            for i in range(s.worker_len[r] - 1):
                out.worker_table[r, i] = names[s.worker_table[r, i]]
    for d in range(s.num_steps):
        for k in range(s.step_len[d]):
            r = s.step_order[d, k] - 1
            for i in range(c.table_len):
                out.step_table[d, r, i] = names[s.step_table[d, r, i]]
