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


def _field(name: str, dims: str, about: str, *, lasts: bool = False) -> Field:
    return Field(name, tuple(dims.split()), about, lasts)


STATE = Schema(
    "state",
    np.int16,
    (
        _field("phase", "", "Phase of the engine's loop"),
        _field("pause", "", "Pause state"),
        _field("assertion", "", "Assertion of vLLM that was reached"),
        _field("misread", "", "1 + request that read KV of another prefix"),
        _field("wrong_output", "", "1 + request that was given a token out of place"),
        _field("num_running", "", "length of running"),
        _field("num_waiting", "", "length of waiting"),
        _field("num_kv_holding", "", "length of kv_holding_waiting"),
        _field("num_free", "", "length of free_queue"),
        _field("num_steps", "", "in-flight steps"),
        _field("num_deferred", "", "deferred frees"),
        _field("seq_ahead", "", "sched_step_seq - processed_step_seq"),
        _field("running", "R", "requests running, in order"),
        _field("waiting", "R", "requests waiting, in policy order"),
        _field("kv_holding", "R", "waiting requests that hold blocks, in policy order"),
        _field("status", "R", "Status"),
        _field("num_tokens", "R", "prompt and delivered output tokens"),
        _field("num_computed", "R", "num_computed_tokens"),
        _field("placeholders", "R", "num_output_placeholders"),
        _field("in_flight", "R", "num_in_flight_tokens"),
        _field("stale", "R", "num_stale_output_tokens"),
        _field("drop_stale", "R", "drop_stale_output"),
        _field("num_drafts", "R", "length of spec_token_ids"),
        _field("prefill_chunk", "R", "is_prefill_chunk"),
        _field("was_preempted", "R", "num_preemptions > 0"),
        _field("last_seq", "R", "last_sched_seq - processed_step_seq, at least 0"),
        _field("decode_wait", "R", "next_decode_eligible_step - current_step, at least 0"),
        _field("num_published", "R", "num_cached_block"),
        _field("num_blocks", "R", "length of the block table"),
        _field("inflight_prefill", "R", "member of _inflight_prefills"),
        _field("finished_note", "R", "member of finished_req_ids"),
        _field("preempted_note", "R", "member of reset_preempted_req_ids"),
        _field("old_drafts", "R", "its drafts do not follow its last token"),
        _field("drafting", "R", "its drafts are due in phase DRAFTS"),
        _field("load", "R", "Load of the asynchronous load"),
        _field("load_start", "R", "first token of the load"),
        _field("load_tokens", "R", "tokens of the load"),
        _field("load_done", "R", "member of finished_recving_kv_req_ids"),
        _field("load_failed", "R", "member of failed_recving_kv_req_ids"),
        _field("load_used", "R", "its one-shot load was used"),
        _field("asks_left", "R", "times the connector still answers 'ask again later'"),
        _field("sending", "R", "1: blocks are being sent, 2: sent but not reported"),
        _field("block_table", "R N", "blocks of the request, in order"),
        _field("transfer_table", "R N", "blocks that its load writes or its sending reads"),
        _field("ref_cnt", "B", "reference count"),
        _field("block_hash", "B", "prefix code that the block is published under, 0 none"),
        _field("hash_rank", "B", "place among the blocks with the same hash, first is 1"),
        _field("free_queue", "B", "free blocks, next to be used first"),
        _field("deferred_fence", "Q", "fence - processed_step_seq"),
        _field("deferred_len", "Q", "blocks of the deferred free"),
        _field("deferred_blocks", "Q N", "its blocks in allocation order"),
        _field("step_len", "D", "requests in the step"),
        _field("step_order", "D R", "requests of the step in the order of its output"),
        _field("step_tokens", "D R", "tokens scheduled"),
        _field("step_start", "D R", "first position that the device computes"),
        _field("step_drafts", "D R", "drafts scheduled"),
        _field("step_acceptable", "D R", "drafts that may be accepted"),
        _field("step_samples", "D R", "the step samples for the request"),
        _field("step_stale", "D R", "times the request was preempted since"),
        _field("step_known", "D R", "tokens that the device knows"),
        _field("step_load_start", "D R", "first token of a synchronous load"),
        _field("step_load_tokens", "D R", "tokens of a synchronous load"),
        _field("step_table", "D R N", "block table that the step was given"),
        _field("kv", "B S", "prefix code of the KV in each slot, 0 garbage"),
    ),
)

SCOPE = Schema(
    "scope",
    np.int32,
    (
        _field("num_requests", "", "R"),
        _field("num_blocks", "", "B, the null block included"),
        _field("block_size", "", "S"),
        _field("table_len", "", "blocks of max_model_len"),
        _field("table_room", "", "N, table_len and what a table grows by without its cap"),
        _field("depth", "", "steps that may be in flight"),
        _field("max_deferred", "", "Q"),
        _field("max_num_seqs", "", ""),
        _field("token_budget", "", "max_num_scheduled_tokens"),
        _field("input_budget", "", "max_num_batched_tokens"),
        _field("max_model_len", "", ""),
        _field("priority_policy", "", "1: priority, 0: FCFS"),
        _field("prefix_caching", "", ""),
        _field("chunked_prefill", "", ""),
        _field("long_prefill_token_threshold", "", ""),
        _field("reserve_full_isl", "", ""),
        _field("watermark_blocks", "", ""),
        _field("async_scheduling", "", ""),
        _field("v2_model_runner", "", ""),
        _field("pipeline_parallel_size", "", "pipeline stages"),
        _field("num_speculative_tokens", "", "k"),
        _field("num_lookahead_tokens", "", "lookahead slots"),
        _field("draft_slots", "", "input slots each request costs besides its tokens"),
        _field("drop_last_hit", "", "the drafting head needs the last hit block recomputed"),
        _field("connector", "", "a KV connector is configured"),
        _field("defer_block_free", "", ""),
        _field("requires_kv_delivery", "", ""),
        _field("recompute_load_failures", "", ""),
        _field("may_reset", "", "reset_prefix_cache() is called"),
        _field(
            "may_reset_running", "", "reset_prefix_cache(reset_running_requests=True) is called"
        ),
        _field("may_pause", "", "set_pause_state is called"),
        _field("may_fail_loads", "", "loads may fail"),
        _field("prompt_len", "R", ""),
        _field("max_tokens", "R", ""),
        _field("priority", "R", ""),
        _field("arrival", "R", "arrival time"),
        _field("may_stop", "R", "a sampled token may be a stop"),
        _field("may_abort", "R", "the client may abort it"),
        _field("external_tokens", "R", "tokens of its prefix that the connector has"),
        _field("external_is_async", "R", "the connector loads asynchronously"),
        _field("external_once", "R", "the connector loads only once"),
        _field("external_ask_later", "R", "times it answers 'ask again later' first"),
        _field("delay_free", "R", "its blocks are sent after it finishes"),
        _field("twin", "R", "1 + an equal request that arrives before it"),
        _field("prefix", "R T", "prefix code of the first n tokens"),
        _field("prefix_hash", "R T", "code of the hash of the first n tokens"),
        _field("prefix_len", "P", "tokens of a prefix code"),
        _field("shorter", "P", "code of the prefix without its last token"),
        _field("hash_of", "P", "code of the hash of a prefix"),
        _field("rules", "K", "1: the rule is on"),
    ),
)

REPORT = Schema(
    "report",
    np.int32,
    (
        _field("num_hits", "", "blocks of the last prefix lookup"),
        _field("hits", "N", "its blocks", lasts=True),
        _field("num_scheduled", "", "requests scheduled"),
        _field("order", "R", "scheduled requests in order"),
        _field("scheduled", "R", "tokens scheduled"),
        _field("start", "R", "num_computed_tokens sent with the step"),
        _field("drafts", "R", "drafts scheduled"),
        _field("padded", "R", "its drafts are padding"),
        _field("admitted", "R", "1: new, 2: resumed, 0: was running"),
        _field("adopted", "R", "prefix hit of an admission, in blocks"),
        _field("adoptable", "R", "longest published run then, in blocks"),
        _field("sync_load", "R", "tokens loaded synchronously"),
        _field("sync_load_start", "R", "first of them"),
        _field("new_load", "R", "an asynchronous load was started"),
        _field("num_victims", "", "requests preempted"),
        _field("victims", "R", "requests preempted, in order"),
        _field("victim_misranked", "", "a victim was not the policy's last"),
        _field("victim_in_vain", "", "a preemption made no block free, or could not at once"),
        _field("passed_over", "", "1 + a running request that the cursor jumped over"),
        _field("token_budget", "", "left of the token budget"),
        _field("input_budget", "", "left of the input budget"),
        _field("num_skipped", "", "requests skipped in the waiting scan"),
        _field("skipped", "R", "those without blocks"),
        _field("num_skipped_holding", "", ""),
        _field("skipped_holding", "R", "those with blocks"),
        _field(
            "old_drafts", "", "1 + a request whose scheduled drafts do not follow its last token"
        ),
        _field("held_back", "R", "not scheduled since it is certain to reach max_tokens"),
        _field("fits", "R", "an admission left room for the rest of its known sequence"),
        _field("delivered", "R", "tokens delivered"),
        _field("finished", "R", "Status it finished with"),
        _field("reset_ok", "", "reset_prefix_cache returned True: 1, False: 0, raised: -1"),
        _field("accepted", "R", "choice: drafts accepted"),
        _field("stop_at", "R", "choice: 1 + place of a stop among the sampled tokens"),
        _field("load_fails", "R", "choice: 1 + block of a synchronous load that fails"),
        _field("failed", "R", "its KV failed to load: skip its output"),
        _field("invalid", "B", "its KV failed to load", lasts=True),
        _field("marked", "B", "a request that recomputes it was found", lasts=True),
        _field("downstream", "B", "it is recomputed, or depends on what is", lasts=True),
        _field("position", "R", "place of the first sampled token"),
        _field("behind", "R", "positions that its next step starts earlier, for rejected drafts"),
        _field("misread", "R", "its step read KV of another prefix"),
        _field("visited", "R", "considered while the running requests were scheduled"),
        _field("branches", "C", "times each branch was taken", lasts=True),
    ),
)
