"""The records of the model: the state, the compiled scope, and the report of one transition.

Requests are numbered from 0; queues and step orders store the number plus one, so that an unused
place is zero and equal states are equal bytes. Blocks are numbered as in vLLM: 0 is the null block.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvproof.native.record import Field, Schema


class Status(IntEnum):
    """Where a request is in its life (vllm/v1/request.py, RequestStatus)."""

    ABSENT = 0
    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_STOPPED = 5
    FINISHED_LENGTH_CAPPED = 6
    FINISHED_ABORTED = 7
    FINISHED_ERROR = 8
    GONE = 9


class Phase(IntEnum):
    """Where the engine's loop stands (vllm/v1/engine/core.py, step and step_with_batch_queue)."""

    TOP = 0
    OUTPUT = 1
    DRAFTS = 2


class Pause(IntEnum):
    """Pause state of the scheduler (vllm/v1/core/sched/interface.py, PauseState)."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


class Load(IntEnum):
    """An asynchronous load: none, writing, or landed; FAILED + i landed without block i."""

    NONE = 0
    PENDING = 1
    LANDED = 2
    FAILED = 3


class Assertion(IntEnum):
    """Assertions and raised errors of vLLM that the model can reach; 0 is none."""

    NONE = 0
    TOKEN_BUDGET_NEGATIVE = 1
    INPUT_BUDGET_NEGATIVE = 2
    TOO_MANY_SCHEDULED_TOKENS = 3
    TOO_MANY_RUNNING = 4
    MORE_SCHEDULED_THAN_RUNNING = 5
    NOTHING_TO_SCHEDULE = 6
    NO_SLOTS_ASKED = 7
    NO_FREE_BLOCKS = 8
    FREE_BLOCK_IN_USE = 9
    BLOCK_PUBLISHED_TWICE = 10
    HIT_FOR_RUNNING_REQUEST = 11
    PREEMPTED_NOT_RUNNING = 12
    STALE_BELOW_ZERO = 13
    PLACEHOLDERS_BELOW_ZERO = 14
    LOAD_OF_UNKNOWN_REQUEST = 15
    LOAD_OF_RUNNING_REQUEST = 16
    SENT_OF_UNKNOWN_REQUEST = 17
    BAD_STATUS_AT_ADMISSION = 18
    HIT_LONGER_THAN_REQUEST = 19
    HASH_OF_UNKNOWN_TOKENS = 20
    BLOCK_NOT_IN_FREE_QUEUE = 21
    PADDING_CUT = 22


class Branch(IntEnum):
    """Branches of the scheduler whose use is counted."""

    running_scheduled = 0
    running_no_tokens = 1
    running_certain_to_finish = 2
    running_decode_cadence = 3
    running_long_prefill_cut = 4
    running_budget_cut = 5
    running_length_cut = 6
    running_drafts_scheduled = 7
    preempted_self = 8
    preempted_other = 9
    preempted_scheduled = 10
    preempted_before_cursor = 11
    victim_not_freeable = 12
    waiting_admitted = 13
    waiting_resumed = 14
    waiting_skipped_blocked = 15
    waiting_skipped_stale = 16
    waiting_skipped_ask_later = 17
    waiting_request_cap = 18
    waiting_chunk = 19
    waiting_not_chunkable = 20
    waiting_padded = 21
    waiting_pad_does_not_fit = 22
    waiting_no_blocks = 23
    waiting_full_sequence_refused = 24
    waiting_watermark_refused = 25
    waiting_reservation_refused = 26
    waiting_block_holder = 27
    prefix_hit = 28
    prefix_hit_free_block = 29
    duplicate_published = 30
    evicted_published = 31
    freed_shared = 32
    load_started = 33
    load_finished = 34
    load_failed_keeps_prefix = 35
    load_failed_frees = 36
    sync_load = 37
    sync_load_failed = 38
    output_delivered = 39
    output_stale_delivered = 40
    output_stale_dropped = 41
    output_of_finished = 42
    drafts_accepted = 43
    drafts_rejected = 44
    stopped_by_token = 45
    stopped_by_length = 46
    stopped_while_waiting = 47
    trimmed_after_stop = 48
    aborted_running = 49
    aborted_waiting = 50
    aborted_loading = 51
    free_deferred = 52
    free_drained = 53
    free_delayed_until_sent = 54
    reset_done = 55
    reset_refused = 56
    reset_preempted = 57
    empty_step = 58


def _field(name: str, dims: str, among: str, about: str, *, lasts: bool = False) -> Field:
    """A field; `among` is its range, with L for max_model_len and k for num_speculative_tokens."""
    return Field(name, tuple(dims.split()), among, about, lasts)


STATE = Schema(
    "state",
    np.int16,
    (
        _field("phase", "", "0..2", "Phase of the engine's loop"),
        _field("pause", "", "0..2", "Pause of the scheduler"),
        _field("assertion", "", "0..22", "Assertion of vLLM that was reached"),
        _field("misread", "", "0..R", "1 + request that read KV of another prefix"),
        _field("wrong_output", "", "0..R", "1 + request that was given a token out of place"),
        _field("num_running", "", "0..R", "requests in running"),
        _field("num_waiting", "", "0..R", "requests in waiting"),
        _field("num_kv_holding", "", "0..R", "requests in kv_holding"),
        _field("num_free", "", "0..B-1", "blocks in free_queue"),
        _field("num_steps", "", "0..D", "steps in flight"),
        _field("num_deferred", "", "0..Q", "deferred frees"),
        _field("seq_ahead", "", "0..D", "steps: sched_step_seq - processed_step_seq"),
        _field("running", "R", "0..R", "requests running, in order"),
        _field("waiting", "R", "0..R", "requests waiting, in policy order"),
        _field("kv_holding", "R", "0..R", "waiting requests that hold blocks, in policy order"),
        _field("status", "R", "0..9", "Status"),
        _field("num_tokens", "R", "0..L", "prompt and delivered output tokens"),
        _field("num_computed", "R", "0..L", "tokens: num_computed_tokens"),
        _field("placeholders", "R", "0..D*(k+1)", "tokens: num_output_placeholders"),
        _field("in_flight", "R", "0..D*token_budget", "tokens: num_in_flight_tokens"),
        _field("stale", "R", "0..D*token_budget", "tokens: num_stale_output_tokens"),
        _field("drop_stale", "R", "0..1", "1: drop_stale_output"),
        _field("num_drafts", "R", "0..k", "drafts: length of spec_token_ids"),
        _field("prefill_chunk", "R", "0..1", "1: is_prefill_chunk"),
        _field("was_preempted", "R", "0..1", "1: num_preemptions > 0"),
        _field("last_seq", "R", "0..D", "steps: last_sched_seq - processed_step_seq, at least 0"),
        _field("decode_wait", "R", "0..pipeline_parallel_size", "steps until it may decode again"),
        _field("num_published", "R", "0..N", "blocks: num_cached_block"),
        _field("num_blocks", "R", "0..N", "blocks in its block table"),
        _field("inflight_prefill", "R", "0..1", "1: member of _inflight_prefills"),
        _field("finished_note", "R", "0..1", "1: member of finished_req_ids"),
        _field("preempted_note", "R", "0..1", "1: member of reset_preempted_req_ids"),
        _field("old_drafts", "R", "0..1", "1: its drafts do not follow its last token"),
        _field("drafting", "R", "0..1", "1: its drafts are due in phase DRAFTS"),
        _field("load", "R", "0..N+2", "Load of the asynchronous load"),
        _field("load_start", "R", "0..L", "position of the load's first token"),
        _field("load_tokens", "R", "0..L", "tokens that it loads"),
        _field("load_wait", "R", "0..D", "steps to return before one may report its load"),
        _field("load_done", "R", "0..1", "1: member of finished_recving_kv_req_ids"),
        _field("load_failed", "R", "0..1", "1: member of failed_recving_kv_req_ids"),
        _field("load_used", "R", "0..1", "1: its one-shot load was used"),
        _field("asks_left", "R", "0..external_ask_later", "answers 'ask again later' left"),
        _field("sending", "R", "0..2", "1: blocks are being sent, 2: sent but not reported"),
        _field("sending_wait", "R", "0..D", "steps to return before one may report its sending"),
        _field("block_table", "R N", "0..B-1", "blocks of the request, in order"),
        _field("transfer_table", "R N", "0..B-1", "blocks that its load or its sending uses"),
        _field("ref_cnt", "B", "0..R", "references of the block, ref_cnt"),
        _field("block_hash", "B", "0..P-1", "prefix code that it is published under, 0 none"),
        _field("hash_rank", "B", "0..B-1", "place among the blocks with the same hash, first is 1"),
        _field("free_queue", "B", "0..B-1", "free blocks, next to be used first"),
        _field("deferred_fence", "Q", "0..D", "steps: fence - processed_step_seq"),
        _field("deferred_len", "Q", "0..N", "blocks of the deferred free"),
        _field("deferred_blocks", "Q N", "0..B-1", "its blocks in allocation order"),
        _field("step_len", "D", "0..R", "requests in the step"),
        _field("step_order", "D R", "0..R", "requests of the step in the order of its output"),
        _field("step_tokens", "D R", "0..token_budget", "tokens scheduled, drafts included"),
        _field("step_start", "D R", "0..L", "position of the first token that the device computes"),
        _field("step_drafts", "D R", "0..k", "drafts scheduled"),
        _field("step_acceptable", "D R", "0..k", "drafts that may be accepted"),
        _field("step_samples", "D R", "0..1", "1: the step samples for the request"),
        _field("step_stale", "D R", "0..D", "times the request was preempted since"),
        _field("step_known", "D R", "0..L", "tokens that the device knows"),
        _field("step_load_start", "D R", "0..L", "position of a synchronous load's first token"),
        _field("step_load_tokens", "D R", "0..L", "tokens of a synchronous load"),
        _field("step_table", "D R N", "0..B-1", "block table that the step was given"),
        _field("worker_len", "V", "0..W+1", "1 + blocks in the workers' table, 0 unknown to them"),
        _field("worker_table", "V W", "0..B-1", "block table that the workers have"),
        _field("kv", "B S", "0..P-1", "prefix code of the KV in each slot, 0 garbage"),
    ),
)

SCOPE = Schema(
    "scope",
    np.int32,
    (
        _field("num_requests", "", "1..R", "requests: R"),
        _field("num_blocks", "", "2..B", "blocks, the null block included: B"),
        _field("block_size", "", "1..S", "slots of a block: S"),
        _field("table_len", "", "1..N", "blocks of max_model_len tokens"),
        _field("table_room", "", "1..N", "blocks: table_len and what a table grows by uncapped"),
        _field(
            "worker_room", "", "0..W", "blocks that a worker's table is followed to, 0: it is not"
        ),
        _field("depth", "", "1..D", "steps that may be in flight: D"),
        _field("max_deferred", "", "1..Q", "deferred frees that can be pending: Q"),
        _field("max_num_seqs", "", "1..", "requests that may run at once"),
        _field("token_budget", "", "1..", "tokens of a step: max_num_scheduled_tokens"),
        _field("input_budget", "", "1..", "input slots of a step: max_num_batched_tokens"),
        _field("max_model_len", "", "1..", "tokens of a request at most"),
        _field("priority_policy", "", "0..1", "1: priority, 0: FCFS"),
        _field("prefix_caching", "", "0..1", "1: enable_prefix_caching"),
        _field("chunked_prefill", "", "0..1", "1: enable_chunked_prefill"),
        _field("long_prefill_token_threshold", "", "0..L", "tokens of a prefill in a step, 0 any"),
        _field("reserve_full_isl", "", "0..1", "1: scheduler_reserve_full_isl"),
        _field("watermark_blocks", "", "0..B", "blocks that admissions leave free"),
        _field("async_scheduling", "", "0..1", "1: async_scheduling"),
        _field("v2_model_runner", "", "0..1", "1: the runner is V2"),
        _field("pipeline_parallel_size", "", "1..D", "pipeline stages"),
        _field("num_speculative_tokens", "", "0..", "drafts per step at most: k"),
        _field("num_lookahead_tokens", "", "0..", "slots allocated ahead for drafts"),
        _field("draft_slots", "", "0..", "input slots each request costs besides its tokens"),
        _field("drop_last_hit", "", "0..1", "1: the last hit block is recomputed for drafting"),
        _field("connector", "", "0..1", "1: a KV connector is configured"),
        _field("defer_block_free", "", "0..1", "1: frees wait for the steps in flight"),
        _field("requires_kv_delivery", "", "0..1", "1: finished requests' KV must be delivered"),
        _field("recompute_load_failures", "", "0..1", "1: failed loads do not end the request"),
        _field("may_reset", "", "0..1", "1: reset_prefix_cache() is called"),
        _field("may_reset_running", "", "0..1", "1: ... and it may preempt what runs"),
        _field("may_pause", "", "0..1", "1: set_pause_state is called"),
        _field("may_fail_loads", "", "0..1", "1: loads may fail"),
        _field("prompt_len", "R", "1..L", "tokens of its prompt"),
        _field("max_tokens", "R", "1..", "output tokens at most"),
        _field("priority", "R", "..", "its priority, lower goes first"),
        _field("arrival", "R", "..", "arrival time"),
        _field("may_stop", "R", "0..1", "1: a sampled token may be a stop"),
        _field("may_abort", "R", "0..1", "1: the client may abort it"),
        _field("external_tokens", "R", "0..L", "tokens of its prefix that the connector has"),
        _field("external_is_async", "R", "0..1", "1: the connector loads asynchronously"),
        _field("external_once", "R", "0..1", "1: the connector loads only once"),
        _field("external_ask_later", "R", "0..", "times it answers 'ask again later' first"),
        _field("delay_free", "R", "0..1", "1: its blocks are sent after it finishes"),
        _field("twin", "R", "0..R", "1 + an equal request that arrives before it"),
        _field("prefix", "R T", "0..P-1", "prefix code of the first n tokens"),
        _field("prefix_hash", "R T", "0..P-1", "code of the hash of the first n tokens"),
        _field("prefix_len", "P", "0..T-1", "tokens of a prefix code"),
        _field("shorter", "P", "0..P-1", "code of the prefix without its last token"),
        _field("hash_of", "P", "0..P-1", "code of the hash of a prefix"),
        _field("rules", "K", "0..1", "1: the rule is on"),
        _field("mends", "M", "0..1", "1: the mend is on"),
    ),
)

REPORT = Schema(
    "report",
    np.int32,
    (
        _field("num_hits", "", "0..N", "blocks of the last prefix lookup"),
        _field("hits", "N", "0..B-1", "its blocks", lasts=True),
        _field("first_new", "R", "0..N", "blocks it held before any for its new tokens"),
        _field("num_scheduled", "", "0..R", "requests scheduled"),
        _field("order", "R", "0..R", "scheduled requests in order"),
        _field("scheduled", "R", "0..token_budget", "tokens scheduled"),
        _field("start", "R", "0..L", "tokens: num_computed_tokens sent with the step"),
        _field("drafts", "R", "0..k", "drafts scheduled"),
        _field("padded", "R", "0..1", "1: its drafts are padding"),
        _field("admitted", "R", "0..2", "1: new, 2: resumed, 0: was running"),
        _field("adopted", "R", "0..N", "prefix hit of an admission, in blocks"),
        _field("adoptable", "R", "0..N", "longest published run then, in blocks"),
        _field("sync_load", "R", "0..L", "tokens loaded synchronously"),
        _field("sync_load_start", "R", "0..L", "position of the first of them"),
        _field("new_load", "R", "0..1", "1: an asynchronous load was started"),
        _field("num_victims", "", "0..R", "requests preempted"),
        _field("victims", "R", "0..R", "requests preempted, in order"),
        _field("victim_misranked", "", "0..1", "1: a victim was not the policy's last"),
        _field("victim_in_vain", "", "0..1", "1: a preemption freed nothing at once"),
        _field("passed_over", "", "0..R", "1 + a running request that the cursor jumped over"),
        _field("token_budget", "", "0..token_budget", "tokens left of the token budget"),
        _field("input_budget", "", "0..input_budget", "input slots left of the input budget"),
        _field("num_skipped", "", "0..R", "requests skipped in the waiting scan that hold none"),
        _field("skipped", "R", "0..R", "those without blocks"),
        _field("num_skipped_holding", "", "0..R", "requests skipped that hold blocks"),
        _field("skipped_holding", "R", "0..R", "those with blocks"),
        _field("old_drafts", "", "0..R", "1 + a request whose scheduled drafts are old"),
        _field("held_back", "R", "0..1", "1: left out, certain to reach max_tokens"),
        _field("fits", "R", "0..1", "1: an admission left room for the rest of its known sequence"),
        _field("delivered", "R", "0..k+1", "tokens delivered"),
        _field("finished", "R", "0..9", "Status it finished with"),
        _field("reset_ok", "", "-1..1", "reset_prefix_cache: 1 True, 0 False, -1 raised"),
        _field("accepted", "R", "0..k", "choice: drafts accepted"),
        _field("stop_at", "R", "0..k+1", "choice: 1 + place of a stop among the sampled tokens"),
        _field("load_fails", "R", "0..N", "choice: 1 + block of a synchronous load that fails"),
        _field("failed", "R", "0..1", "1: its KV failed to load, its output is skipped"),
        _field("invalid", "B", "0..1", "1: its KV failed to load", lasts=True),
        _field("marked", "B", "0..1", "1: a request that recomputes it was found", lasts=True),
        _field("downstream", "B", "0..1", "1: it is recomputed, or depends on what is", lasts=True),
        _field("position", "R", "0..L", "place of the first sampled token"),
        _field("behind", "R", "0..D*k", "positions that its next step moves back"),
        _field("misread", "R", "0..1", "1: its step read KV of another prefix"),
        _field("visited", "R", "0..1", "1: considered while the running requests were scheduled"),
        _field("branches", "C", "0..", "times each branch was taken", lasts=True),
    ),
)
