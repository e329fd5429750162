"""What becomes of each field that leaves the scheduler, and of each attribute of its objects.

One line a field: `compared` (where, in so many words), `default` (held against the value that text
with full attention always has), `constant` (set when the object is built; a test sees that no run
changes it), or `excused`, with the reason why it cannot matter here. A test reads vLLM's classes
and objects and fails on a field that has no line, and on a line without a field.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

How = Literal["compared", "default", "constant", "excused"]


class Entry(NamedTuple):
    """What becomes of one field, and where or why."""

    how: How
    why: str


def _lines(how: How, why: str, *names: str) -> dict[str, Entry]:
    return {name: Entry(how, why) for names_ in names for name in names_.split()}


ALWAYS_DEFAULT: dict[str, dict[str, Any]] = {
    "SchedulerOutput": {
        "scheduled_encoder_inputs": {},
        "free_encoder_mm_hashes": [],
        "scheduled_encoder_input_stats": None,
        "has_structured_output_requests": False,
        "pending_structured_output_tokens": False,
        "num_invalid_spec_tokens": None,
        "aux_output_connector_metadata": None,
        "ec_connector_metadata": None,
        "ec_manager_metadata": None,
        "new_block_ids_to_zero": None,
        "kv_cache_block_copies": None,
        "block_table_updates": None,
        "kv_connector_block_state": None,
    },
    "NewRequestData": {
        "mm_features": [],
        "pooling_params": None,
        "lora_request": None,
        "prompt_embeds": None,
        "prompt_is_token_ids": None,
        "replay_start": 0,
    },
    "CachedRequestData": {},
    "EngineCoreOutput": {
        "new_logprobs": None,
        "new_prompt_logprobs_tensors": None,
        "pooling_output": None,
        "events": None,
        "ec_transfer_params": None,
        "trace_headers": None,
        "routed_experts": None,
        "num_nans_in_logits": 0,
        "mm_cache_miss_hashes": None,
        "new_sampling_mask": None,
        "spec_decode_metrics": None,
        "prompt_token_id_logprobs": None,
    },
    "EngineCoreOutputs": {
        "engine_index": 0,
        "scheduler_stats": None,
        "utility_output": None,
        "finished_requests": None,
        "wave_complete": None,
        "start_wave": None,
    },
}
"""By class: the fields that text with full attention leaves at one value, and that value."""


def _defaults(of: str) -> dict[str, Entry]:
    return {
        name: Entry("default", f"{value!r} for text with full attention")
        for name, value in ALWAYS_DEFAULT[of].items()
    }


_STEP = "in the step's result, and with the scheduler's objects"
_OBJECT = "its own attributes have lines of their own"

INVENTORY: dict[str, dict[str, Entry]] = {
    "SchedulerOutput": {
        **_lines(
            "compared",
            _STEP,
            "num_scheduled_tokens total_num_scheduled_tokens scheduled_spec_decode_tokens",
            "num_common_prefix_blocks finished_req_ids preempted_req_ids kv_connector_metadata",
            "has_sync_kv_loads num_spec_tokens_to_schedule",
        ),
        **_lines("compared", _OBJECT, "scheduled_new_reqs scheduled_cached_reqs"),
        **_defaults("SchedulerOutput"),
    },
    "NewRequestData": {
        **_lines(
            "compared",
            _STEP,
            "req_id prompt_token_ids prefill_token_ids block_ids num_computed_tokens",
        ),
        **_lines("compared", "the request's own, by value", "sampling_params"),
        **_defaults("NewRequestData"),
    },
    "CachedRequestData": _lines(
        "compared",
        _STEP,
        "req_ids resumed_req_ids new_token_ids all_token_ids new_block_ids num_computed_tokens",
        "num_output_tokens",
    ),
    "EngineCoreOutput": {
        **_lines(
            "compared",
            "in the output's result",
            "request_id new_token_ids finish_reason stop_reason kv_transfer_params prefill_stats",
        ),
        **_defaults("EngineCoreOutput"),
    },
    "EngineCoreOutputs": {
        **_lines("compared", _OBJECT, "outputs"),
        **_lines("excused", "the time at which it was made", "timestamp"),
        **_defaults("EngineCoreOutputs"),
    },
    "PrefillStats": _lines(
        "compared",
        "in the output's result",
        "num_prompt_tokens num_computed_tokens num_cached_tokens num_local_cached_tokens",
        "num_external_cached_tokens num_cache_creation_tokens",
    ),
    "Scheduler": {
        **_lines(
            "compared",
            "in the observation",
            "waiting kv_holding_waiting running finished_req_ids reset_preempted_req_ids",
            "finished_recving_kv_req_ids failed_recving_kv_req_ids deferred_frees _pause_state",
            "_inflight_prefills",
        ),
        **_lines("compared", "each request in the observation", "requests"),
        **_lines("compared", "their difference in the observation", "sched_step_seq"),
        **_lines("compared", "their difference in the observation", "processed_step_seq"),
        **_lines(
            "compared",
            "by the worker: who is sent with all its tokens",
            "prev_step_scheduled_req_ids",
        ),
        **_lines("compared", "NoLeak: holds requests that wait, and no others", "deferred_waiting"),
        **_lines("compared", "each request's steps until it may decode", "current_step"),
        **_lines("compared", _OBJECT, "kv_cache_manager connector"),
        **_lines(
            "constant",
            "",
            "vllm_config scheduler_config cache_config lora_config model_uses_mrope",
            "kv_cache_config kv_events_config parallel_config log_stats observability_config",
            "spec_decode_metrics_level kv_metrics_collector structured_output_manager",
            "is_encoder_decoder is_mm_encoder_only finished_req_ids_dict max_num_running_reqs",
            "max_num_active_reqs max_num_scheduled_tokens adaptive_long_prefill_threshold",
            "max_model_len enable_kv_cache_events num_sampled_tokens_per_step",
            "connector_prefix_cache_stats recompute_kv_load_failures defer_block_free",
            "requires_kv_delivery kv_event_publisher ec_connector block_size dcp_world_size",
            "pcp_world_size policy num_waiting_for_streaming_input max_num_encoder_input_tokens",
            "encoder_cache_manager use_eagle use_eagle_block_drop num_spec_tokens",
            "num_lookahead_tokens prefix_replay_tokens num_prefill_lookahead dynamic_sd_lookup",
            "hash_block_size use_pp use_v2_model_runner scheduler_reserve_full_isl",
            "has_mamba_layers needs_kv_cache_zeroing need_mamba_block_aligned_split",
            "mamba_prefill_checkpoint_alignment mamba_has_prefill_checkpoint_blocks",
            "mamba_partial_cache_hit mamba_shared_prefix_checkpoint perf_metrics",
            "aux_output_connector return_sampling_mask grammar_compile_error_reqs",
            "encoder_cache_mismatch_reqs _skip_zero_block_ids",
        ),
        **_lines(
            "excused",
            "read by schedule(throttle_prefills=True) alone, which only data parallel engines call",
            "prefill_capacity_bound",
        ),
    },
    "Request": {
        **_lines(
            "compared",
            "in the observation",
            "request_id status num_computed_tokens num_output_placeholders num_in_flight_tokens",
            "num_stale_output_tokens drop_stale_output spec_token_ids is_prefill_chunk",
            "last_sched_seq next_decode_eligible_step _all_token_ids _output_token_ids",
        ),
        **_lines("compared", "by the hashes that its blocks are published under", "block_hashes"),
        **_lines("compared", "whether it is above 0, which is all that is read", "num_preemptions"),
        **_lines("compared", "with the output that carries it", "prefill_stats stop_reason"),
        **_lines(
            "constant",
            "",
            "client_index priority sampling_params pooling_params lora_request",
            "structured_output_request arrival_time events kv_transfer_params ec_transfer_params",
            "max_tokens kv_cache_report_mode prompt_token_ids prompt_embeds prompt_is_token_ids",
            "_prompt_embeds_per_block_hashes num_prompt_tokens cache_salt mm_features",
            "trace_headers session_id kv_hints shared_prefix_boundary replay_start",
            "num_nans_in_logits spec_decode_metrics _block_hasher skip_reading_prefix_cache",
            "resumable streaming_queue abort_immediately",
        ),
        **_lines("excused", "a view of a list that is compared", "output_token_ids all_token_ids"),
    },
    "KVCacheManager": {
        **_lines("compared", _OBJECT, "coordinator block_pool"),
        **_lines(
            "constant",
            "",
            "max_model_len enable_caching enable_kv_cache_events use_eagle log_stats",
            "metrics_collector prefix_cache_stats mamba_shared_prefix_checkpoint",
            "num_kv_cache_groups retained_hit_group_ids kv_cache_config watermark_blocks",
            "kv_cache_event_metadata empty_kv_cache_blocks",
        ),
    },
    "UnitaryKVCacheCoordinator": {
        **_lines("compared", _OBJECT, "block_pool single_type_managers"),
        **_lines(
            "constant",
            "",
            "kv_cache_config scheduler_block_size num_reprefillable_tokens eagle_group_ids",
            "group_block_sizes retention_interval kv_cache_spec dcp_world_size pcp_world_size",
            "block_size",
        ),
    },
    "KVCacheCoordinatorNoPrefixCache": {
        **_lines("compared", _OBJECT, "block_pool single_type_managers"),
        **_lines(
            "constant",
            "",
            "kv_cache_config scheduler_block_size num_reprefillable_tokens eagle_group_ids",
            "group_block_sizes retention_interval num_single_type_manager",
        ),
    },
    "FullAttentionManager": {
        **_lines("compared", "in the observation", "req_to_blocks num_cached_block"),
        **_lines("compared", _OBJECT, "block_pool"),
        **_lines(
            "constant",
            "",
            "scheduler_block_size cache_hit_alignment_tokens dcp_world_size pcp_world_size",
            "block_size kv_cache_spec enable_caching max_admission_blocks_per_request",
            "_record_new_block_ids new_block_ids kv_cache_group_id _null_block use_eagle",
            "shared_prefix_checkpoint _partial_hit_reqs _pending_cow_copies",
            "_pending_boundary_state_offloads",
        ),
    },
    "BlockPool": {
        **_lines("compared", "each block in the observation", "blocks"),
        **_lines("compared", _OBJECT, "free_block_queue cached_block_hash_to_block"),
        **_lines(
            "constant",
            "",
            "num_gpu_blocks medium enable_caching hash_block_size null_block",
            "enable_kv_cache_events kv_event_queue metrics_collector _reuse_watchers",
            "cached_block_hashes_by_block",
        ),
    },
    "KVCacheBlock": {
        **_lines("compared", "in the observation", "block_id ref_cnt _block_hash"),
        **_lines(
            "compared", "by the tokens that a client is told were cached", "_block_hash_num_tokens"
        ),
        **_lines("compared", "by the walk of the free queue, both ways", "next_free_block"),
        **_lines("compared", "by the walk of the free queue, both ways", "prev_free_block"),
        **_lines("constant", "", "is_null pool"),
    },
    "FreeKVCacheBlockQueue": {
        **_lines("compared", "with the length of the walk", "num_free_blocks"),
        **_lines(
            "compared",
            "by the walk of the free queue, both ways",
            "fake_free_list_head fake_free_list_tail",
        ),
    },
    "BlockHashToBlockMap": _lines("compared", "in the observation", "_cache"),
    "PriorityRequestQueue": _lines("compared", "in the observation, in order", "_heap"),
    "FCFSRequestQueue": {},
}
"""By class: its fields or attributes, and what becomes of each."""

INVENTORY["AsyncScheduler"] = {
    **INVENTORY["Scheduler"],
    **_lines("compared", "by the drafts of each request", "_spec_token_placeholders"),
    **_lines("constant", "", "pp_size decode_stagger"),
}


def figures() -> dict[str, Counter[str]]:
    """By class: how many of its fields are compared, and how many are not."""
    return {of: Counter(entry.how for entry in lines.values()) for of, lines in INVENTORY.items()}
