"""Edits that take a guard of vLLM out where it is a condition or a statement inside a function.

One entry a rule: the edits after which the real classes do what the model does with the rule off.
"""

from __future__ import annotations

import ast

from kvproof.vllm.edits import (
    Change,
    Edit,
    Move,
    Place,
    always,
    become,
    drop,
    followed_by,
    never,
    preceded_by,
    without,
)

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_TYPE = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager"


def _schedule(*changes: Change) -> tuple[Edit, ...]:
    return (Edit(f"{_SCHEDULER}.schedule", changes),)


def _update_from_output(*changes: Change) -> tuple[Edit, ...]:
    return (Edit(f"{_SCHEDULER}.update_from_output", changes),)


# The two scans of schedule(), and what they ask for each request.
RUNNING = Place(ast.While, ("req_index", "token_budget"), "test")
_SCANS_WAITING = Place(ast.If, ("preempted_reqs", "_pause_state"), "test")
WAITING = Place(ast.While, ("token_budget",), "test", within=(_SCANS_WAITING, "body"))
_RUNNING_CHUNK = Place(
    ast.Call, ("min", "num_new_tokens", "token_budget"), within=(RUNNING, "body")
)
_WAITING_CHUNK = Place(ast.Assign, ("request_token_budget",), "targets", within=(WAITING, "body"))
_WAITING_LIMIT = Place(ast.Call, ("min",), within=(_WAITING_CHUNK, "value"))
_IN_LIMIT = (_WAITING_LIMIT, "args")
_SENDS_GROWTH = Place(ast.Assign, ("req_to_new_blocks",), "targets", within=(RUNNING, "body"))
_SENDS_TABLE = Place(ast.Assign, ("req_to_new_blocks",), "targets", within=(WAITING, "body"))
_BY_PRIORITY = Place(ast.If, ("max", "arrival_time"), "body", within=(RUNNING, "body"))

# The capacity check of allocate_slots().
_ADOPTS = Place(ast.If, ("new_computed_block_list", "num_external_computed_tokens"), "test")
_AVAILABLE = Place(ast.Assign, ("available_blocks",), "targets")
_PUBLISHED_UP_TO = Place(ast.Call, ("min", "num_new_tokens", "num_tokens"))

EDITS: dict[str, tuple[Edit, ...]] = {
    # A linked list cannot hold a block twice: a copy stands in it for the second time.
    "free_at_last_reference": (
        Edit(
            f"{_POOL}.free_blocks",
            (
                Change(Place(ast.Compare, ("ref_cnt",), "left"), become("block.ref_cnt >= 0")),
                Change(
                    Place(ast.If, ("ref_cnt", "is_null"), "test"),
                    preceded_by(
                        "import copy\n"
                        "if block.next_free_block is not None:\n"
                        "    block = copy.copy(block)\n"
                    ),
                ),
            ),
        ),
    ),
    "check_capacity_before_pinning": (
        Edit(f"{_MANAGER}.allocate_slots", (Move(_ADOPTS, before=_AVAILABLE),)),
    ),
    "pin_hits_before_allocating": (
        Edit(f"{_TYPE}.add_local_computed_blocks", (Change(Place(ast.Expr, ("touch",)), drop),)),
        Edit(
            f"{_MANAGER}.allocate_slots",
            (
                Change(
                    Place(ast.Assign, ("allocate_new_blocks",)),
                    followed_by("self.block_pool.touch(new_computed_block_list[0])"),
                ),
            ),
        ),
    ),
    # A hash needs tokens: those that were proposed stand in for what will be.
    "publish_committed_tokens_only": (
        Edit(
            f"{_MANAGER}.allocate_slots",
            (
                Change(_PUBLISHED_UP_TO, become("total_computed_tokens + num_new_tokens")),
                Change(
                    Place(ast.If, ("delay_cache_blocks",), "test"),
                    followed_by(
                        "known = len(request._all_token_ids)\n"
                        "request._all_token_ids.extend(request.spec_token_ids)\n"
                        "request.update_block_hashes()\n"
                        "del request._all_token_ids[known:]\n"
                    ),
                ),
            ),
        ),
    ),
    "cap_slots_at_model_length": (
        Edit(
            f"{_MANAGER}.allocate_slots",
            (
                Change(
                    Place(ast.Call, ("min", "num_lookahead_tokens", "max_model_len")),
                    become("num_tokens_main_model + num_lookahead_tokens"),
                ),
            ),
        ),
    ),
    "drop_victim_from_step": _schedule(
        Change(Place(ast.If, ("preempted_req", "scheduled_running_reqs"), "test"), never)
    ),
    "refund_victim_budget": _schedule(
        Change(Place(ast.AugAssign, ("token_budget", "restored")), drop),
        Change(Place(ast.AugAssign, ("input_budget", "restored")), drop),
    ),
    "step_back_cursor_after_victim": _schedule(
        Change(Place(ast.If, ("victim_index", "req_index"), "test"), never)
    ),
    "preempt_policy_last": _schedule(
        Change(
            Place(ast.Subscript, ("running",), within=(_BY_PRIORITY, "orelse")),
            become("self.running[0]"),
        ),
        Change(
            Place(ast.Call, ("max", "arrival_time"), within=(RUNNING, "body")),
            become("self.running[0]"),
        ),
        Change(
            Place(ast.Call, ("running", "pop"), "func", within=(RUNNING, "body")),
            become("self.running.pop(0)"),
        ),
    ),
    "victim_must_be_freeable": _schedule(
        Change(Place(ast.If, ("_request_blocks_can_be_freed",), "test"), never)
    ),
    "admit_nobody_after_preemption": _schedule(
        Change(Place(ast.BoolOp, ("preempted_reqs", "_pause_state")), without("preempted_reqs"))
    ),
    "respect_request_cap": _schedule(
        Change(Place(ast.If, ("max_num_active_reqs",), "test"), never)
    ),
    # Paused for all, the budget is the only thing that keeps the running ones back.
    "respect_token_budget": _schedule(
        Change(_RUNNING_CHUNK, without("token_budget")),
        Change(Place(ast.Name, ("token_budget",), within=_IN_LIMIT), become("self.max_model_len")),
        Change(WAITING, always),
        Change(
            Place(ast.Compare, ("token_budget",), within=(RUNNING, "test")),
            become("self._pause_state != PauseState.PAUSED_ALL"),
        ),
    ),
    "respect_input_budget": _schedule(
        Change(
            Place(ast.If, ("input_budget", "draft_slots"), "test", within=(RUNNING, "body")), never
        ),
        Change(_RUNNING_CHUNK, without("input_budget")),
        Change(Place(ast.BinOp, ("input_budget",), within=_IN_LIMIT), become("self.max_model_len")),
        Change(
            Place(ast.BoolOp, ("request_queue", "input_budget"), within=(WAITING, "body")),
            without("input_budget"),
        ),
    ),
    # What ends a second time is not freed a second time.
    "ignore_output_of_finished": _update_from_output(
        Change(Place(ast.BoolOp, ("is_finished",)), without("is_finished")),
        Change(
            Place(ast.Name, ("stopped",), within=(Place(ast.If, ("stopped",), "test"), "test")),
            become("stopped and not RequestStatus.is_finished(status_before_stop)"),
        ),
    ),
    "finish_once": (
        Edit(
            f"{_SCHEDULER}.finish_requests",
            (Change(Place(ast.BoolOp, ("is_finished",)), without("is_finished")),),
        ),
    ),
    "drain_stale_outputs": _schedule(
        Change(Place(ast.If, ("num_stale_output_tokens",), "test"), never)
    ),
    "keep_stale_output_off_counters": (
        *_update_from_output(Change(Place(ast.UnaryOp, ("output_is_stale",)), become("True"))),
        Edit(
            f"{_ASYNC}._update_request_with_output",
            (Change(Place(ast.If, ("is_stale",), "test"), always),),
        ),
    ),
    "stop_scheduling_at_max_tokens": _schedule(
        Change(Place(ast.If, ("num_output_placeholders", "max_tokens"), "test"), never)
    ),
    "count_only_certain_tokens": _schedule(
        Change(
            Place(
                ast.BinOp,
                ("num_computed_tokens", "num_output_placeholders"),
                within=(Place(ast.If, ("num_output_placeholders", "max_tokens"), "test"), "test"),
            ),
            become("request.num_computed_tokens + 1"),
        )
    ),
    "roll_back_rejected_drafts": _update_from_output(
        Change(Place(ast.AugAssign, ("num_computed_tokens", "num_rejected")), drop)
    ),
    "roll_back_rejected_placeholders": _update_from_output(
        Change(Place(ast.AugAssign, ("num_output_placeholders", "num_rejected")), drop)
    ),
    "cap_positions_at_model_length": _schedule(
        Change(Place(ast.Assign, ("min", "max_model_len", "num_sampled_tokens_per_step")), drop)
    ),
    "recompute_last_loaded_token": (
        Edit(
            f"{_SCHEDULER}._update_waiting_for_remote_kv",
            (Change(Place(ast.If, ("num_computed_tokens", "num_tokens"), "test"), never),),
        ),
    ),
    "truncate_at_invalid_block": (
        Edit(
            f"{_SCHEDULER}._update_requests_with_invalid_blocks",
            (Change(Place(ast.Assign, ("num_computed_tokens", "idx")), drop),),
        ),
    ),
    "drain_block_holders_first": _schedule(
        Change(
            Place(ast.BoolOp, ("kv_holding_waiting", "waiting")),
            become("self.waiting or self.kv_holding_waiting"),
        )
    ),
    "count_loaded_tokens_exactly": (
        Edit(
            f"{_SCHEDULER}._update_waiting_for_remote_kv",
            (
                Change(
                    Place(
                        ast.Expr,
                        ("cache_blocks",),
                        within=(Place(ast.If, ("failed_recving_kv_req_ids",), "test"), "orelse"),
                    ),
                    preceded_by(
                        "(table,) = self.kv_cache_manager.get_block_ids(request.request_id)\n"
                        "held = len(table) * self.block_size\n"
                        "request.num_computed_tokens = min(held, request.num_tokens)\n"
                    ),
                ),
            ),
        ),
    ),
    "publish_full_blocks": (
        Edit(f"{_MANAGER}.allocate_slots", (Change(Place(ast.Expr, ("cache_blocks",)), drop),)),
    ),
    "replace_resumed_table": (
        Edit(
            f"{_SCHEDULER}._make_cached_request_data",
            (Change(Place(ast.If, ("idx", "num_running_reqs"), "test"), never),),
        ),
    ),
    "send_resumed_as_new": _schedule(
        Change(Place(ast.Expr, ("scheduled_new_reqs", "extend", "scheduled_resumed_reqs")), drop),
        Change(Place(ast.Expr, ("scheduled_resumed_reqs", "clear")), drop),
    ),
    "send_table_growth": _schedule(
        Change(
            Place(ast.Name, ("new_blocks",), within=(_SENDS_GROWTH, "value")),
            become("self.kv_cache_manager.empty_kv_cache_blocks"),
        )
    ),
    "send_adopted_blocks": _schedule(
        Change(
            Place(ast.Call, ("get_blocks",), "func", within=(_SENDS_TABLE, "value")),
            become("new_blocks"),
        )
    ),
    "tell_finished_requests": _schedule(
        Change(Place(ast.Attribute, ("finished_req_ids",)), become("set()"))
    ),
    "tell_preempted_requests": _schedule(
        Change(Place(ast.Attribute, ("reset_preempted_req_ids",)), become("set()"))
    ),
}
"""By rule: what takes its guard out."""
