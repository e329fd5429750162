"""The contract: what the model takes for granted of everything around the scheduler.

Who breaks a promise has a fault of his own: what falls then is not the scheduler's. Each promise
has its sources in vLLM 0.31.0 and the tests that hold the model or the driver to it; where the
model is narrower than what vLLM allows, `narrower` says so. `docs/environment.md` is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Party = Literal["engine", "client", "worker", "drafter", "connector"]

_CORE = "vllm/v1/engine/core.py"
_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
_MIXIN = "vllm/v1/worker/kv_connector_model_runner_mixin.py"
_V2 = "vllm/v1/worker/gpu/kv_connector.py"

_TIE = "checks/test_engine_tie.py::test_the_real_loop_makes_the_same_calls_in_the_same_order"
_PARTED = "checks/test_engine_tie.py::test_a_run_that_no_engine_takes_is_told_from_the_others"
_REFUSED = "tests/test_contract.py::test_an_action_that_breaks_a_promise_is_refused_by_its_name"
_DRIVER = "tests/test_vllm_driver.py::test_a_report_that_no_worker_can_make_is_refused_by_name"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One promise: who gives it, where vLLM has it ("file: Class.function"), what tests hold it."""

    name: str
    by: Party
    statement: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    narrower: str = ""


CONTRACT = (
    Promise(
        name="calls-never-overlap",
        by="engine",
        statement="Every call of the scheduler is made by one thread and ends before the next "
        "begins.",
        sources=(f"{_CORE}: EngineCoreProc.run_busy_loop",),
        tests=(_TIE,),
    ),
    Promise(
        name="outputs-in-order",
        by="engine",
        statement="The outputs of the steps in flight are taken in first in, first out.",
        sources=(
            f"{_CORE}: EngineCore.step_with_batch_queue",
            "vllm/v1/executor/multiproc_executor.py: FutureWrapper.result",
        ),
        tests=(_TIE, _PARTED),
    ),
    Promise(
        name="one-output-per-step",
        by="engine",
        statement="Each step is answered by one output, an empty step too, and no output comes "
        "without a step in flight.",
        sources=(f"{_CORE}: EngineCore.step", f"{_CORE}: EngineCore.step_with_batch_queue"),
        tests=(_PARTED, _REFUSED),
    ),
    Promise(
        name="queue-filled-before-waiting",
        by="engine",
        statement="While fewer steps are in flight than may be and there is work, the next is "
        "scheduled before an output is waited for; when none is left to be scheduled, or the queue "
        "is full, the oldest output is waited for. One step at a time alternates with its output.",
        sources=(f"{_CORE}: EngineCore.step", f"{_CORE}: EngineCore.step_with_batch_queue"),
        tests=(_TIE, _PARTED, _REFUSED),
    ),
    Promise(
        name="aborts-before-the-output",
        by="engine",
        statement="Aborts that arrive while a step runs are taken in between calls, before the "
        "output of the step that the engine waits for.",
        sources=(f"{_CORE}: EngineCore._process_aborts_queue",),
        tests=(_TIE,),
    ),
    Promise(
        name="utility-calls-between-steps",
        by="engine",
        statement="Arrivals, resets, pauses and resumes are taken in at the top of the loop: never "
        "between the wait for an output and its drafts.",
        sources=(
            f"{_CORE}: EngineCoreProc._process_input_queue",
            f"{_CORE}: EngineCoreProc._handle_client_request",
        ),
        tests=(_TIE, _REFUSED),
    ),
    Promise(
        name="ids-arrive-once",
        by="client",
        statement="No two requests have one id, at the same time or one after the other.",
        sources=("vllm/v1/engine/input_processor.py: InputProcessor.assign_request_id",),
        tests=(_REFUSED,),
    ),
    Promise(
        name="samples-what-is-due",
        by="worker",
        statement="A step gives each request that has all its known tokens computed one token "
        "more than the drafts that it accepts, no more drafts than were scheduled, and the others "
        "none.",
        sources=(
            f"{_RUNNER}: GPUModelRunner._bookkeeping_sync",
            "vllm/v1/sample/rejection_sampler.py: RejectionSampler.parse_output",
        ),
        tests=(
            _REFUSED,
            "tests/test_vllm_driver.py::"
            "test_an_output_that_its_step_cannot_have_is_answered_and_ends_the_run",
        ),
    ),
    Promise(
        name="drafts-follow-their-output",
        by="engine",
        statement="Without asynchronous scheduling the drafts of a step that scheduled anything "
        "come right after its output, once.",
        sources=(f"{_CORE}: EngineCore.post_step",),
        tests=(_TIE, _REFUSED),
    ),
    Promise(
        name="drafts-at-most-k",
        by="drafter",
        statement="The drafter proposes at most num_speculative_tokens drafts for a request.",
        sources=(f"{_RUNNER}: GPUModelRunner.take_draft_token_ids",),
        tests=(_REFUSED,),
    ),
    Promise(
        name="steps-run-in-order",
        by="worker",
        statement="A worker runs its steps one after the other in the order in which they were "
        "scheduled. Transfers are in no order with them.",
        sources=("vllm/v1/executor/multiproc_executor.py: WorkerProc.worker_busy_loop",),
        tests=("tests/test_device.py::test_the_oldest_step_is_forgotten_and_the_others_move_up",),
    ),
    Promise(
        name="loads-reported-from-their-step-on",
        by="worker",
        statement="An asynchronous load starts with the step that carries it, and is reported with "
        "that step's output or a later one, never with an earlier one.",
        sources=(
            f"{_MIXIN}: KVConnectorModelRunnerMixin._get_kv_connector_output",
            f"{_V2}: ActiveKVConnector.post_forward",
        ),
        tests=(
            "tests/test_contract.py::test_no_state_of_a_scope_reports_what_its_steps_have_not_told",
            _DRIVER,
        ),
    ),
    Promise(
        name="loads-end-once",
        by="connector",
        statement="Each asynchronous load ends once, failed ones too, and its end is reported.",
        sources=(f"{_BASE}: KVConnectorBase_V1.get_finished",),
        tests=(_REFUSED, _DRIVER),
    ),
    Promise(
        name="sendings-reported-once-the-end-is-told",
        by="worker",
        statement="A sending is reported with the output of the first step after the request's "
        "end, which tells workers of it, or with a later one.",
        sources=(
            f"{_BASE}: KVConnectorBase_V1.get_finished",
            f"{_MIXIN}: KVConnectorModelRunnerMixin._get_kv_connector_output",
            f"{_V2}: ActiveKVConnector.post_forward",
        ),
        tests=(
            "tests/test_contract.py::test_no_state_of_a_scope_reports_what_its_steps_have_not_told",
            _REFUSED,
            _DRIVER,
        ),
    ),
    Promise(
        name="sendings-end-once",
        by="connector",
        statement="Each request whose blocks the connector keeps is reported as sent once.",
        sources=(f"{_BASE}: KVConnectorBase_V1.request_finished",),
        tests=(_REFUSED, _DRIVER),
    ),
    Promise(
        name="failed-blocks-by-the-completion",
        by="connector",
        statement="Blocks that a load could not fill are blocks that it was to fill; those of an "
        "asynchronous one are reported no later than its end, those of a synchronous one with its "
        "own step.",
        sources=(f"{_BASE}: KVConnectorBase_V1.get_block_ids_with_load_errors",),
        tests=(_DRIVER,),
        narrower="They may come earlier than the end; the model has both in one output, and one "
        "failed block a load.",
    ),
    Promise(
        name="no-more-tokens-than-there-are",
        by="connector",
        statement="The connector offers at most the request's own tokens, and offers the same "
        "prefix whenever it is asked; 'later' is answered a bounded number of times.",
        sources=(f"{_BASE}: KVConnectorBase_V1.get_num_new_matched_tokens",),
        tests=("tests/test_contract.py::test_a_connector_offers_no_more_tokens_than_there_are",),
    ),
    Promise(
        name="keeps-what-ended-by-itself",
        by="connector",
        statement="The connector keeps the blocks of requests that stop or reach a limit, and of "
        "no others.",
        sources=(f"{_BASE}: KVConnectorBase_V1.request_finished",),
        tests=("tests/test_contract.py::test_an_aborted_request_is_not_kept_for_sending",),
        narrower="A connector may keep any that has ended; one in the tree keeps aborted ones.",
    ),
)
"""Every promise: the loop's first, then what a step returns, then transfers'."""
