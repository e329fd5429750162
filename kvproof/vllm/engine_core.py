"""The real EngineCore in place of the driver's own loop: does it make the same calls?

Runs in vLLM's interpreter, `python -m kvproof.vllm.engine_core FD`, and answers as the driver does.
`["tie", scope, operations]` takes the operations of one run (kvproof/vllm/protocol.py) twice: by
the driver's engine, and by `EngineCoreProc`, whose executor is a script: clients' messages arrive
in its input queue, aborts while a step runs in its abort queue too, and a step's answer is what
the operation says. The answer to a tie has the calls that each made of the scheduler.
"""

from __future__ import annotations

import inspect
import queue
import sys
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from kvproof.vllm.driver import Engine, serve_on, vllm_location

WATCHED = (
    "add_request",
    "finish_requests",
    "schedule",
    "update_from_output",
    "update_draft_token_ids",
    "reset_prefix_cache",
    "set_pause_state",
)
"""Methods of the scheduler that change it."""

INPUTS = ("add", "abort", "pause", "reset_prefix_cache", "set_pause_state", "observe")
"""Operations that clients and devices begin; the others are the loop's."""

Call = list[Any]


class Parted(BaseException):
    """The engine's loop wants something else than what comes next in the script."""


class EndOfScript(BaseException):
    """The run ends while the loop waits."""


class Recorder:
    """Notes the watched calls of one scheduler with plain arguments, in order."""

    def __init__(self, scheduler: Any) -> None:
        self.calls: list[Call] = []
        self._scheduler = scheduler
        self._steps: list[SchedulerOutput] = []
        for name in WATCHED:
            setattr(scheduler, name, partial(self._call, name, getattr(scheduler, name)))

    def _call(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(method).bind(*args, **kwargs)
        bound.apply_defaults()
        if name == "finish_requests" and bound.arguments["request_ids"] is None:
            alive = [q.request_id for q in self._scheduler.requests.values() if not q.is_finished()]
            bound.arguments["request_ids"] = alive
        self.calls.append([name, *map(self._plain, bound.arguments.values())])
        result = method(*args, **kwargs)
        if name == "schedule":
            self._steps.append(result)
        return result

    def _plain(self, value: Any) -> Any:
        """An argument as it can be compared: ids for requests, numbers for steps."""
        if isinstance(value, Request):
            return value.request_id
        if isinstance(value, SchedulerOutput):
            return next(i for i, step in enumerate(self._steps) if step is value)
        if isinstance(value, ModelRunnerOutput):
            transfers = value.kv_connector_output
            return [
                value.req_ids,
                value.sampled_token_ids,
                None
                if transfers is None
                else [
                    sorted(transfers.finished_recving or ()),
                    sorted(transfers.finished_sending or ()),
                    sorted(transfers.invalid_block_ids),
                ],
            ]
        if isinstance(value, DraftTokenIds):
            return [value.req_ids, value.draft_token_ids]
        if isinstance(value, (set, frozenset)):
            return sorted(self._plain(one) for one in value)
        if isinstance(value, (list, tuple)):
            return [self._plain(one) for one in value]
        if value is None or isinstance(value, (bool, int)):
            return value
        return str(value)


class ScriptedExecutor:
    """An executor without a model: every question is answered by the script."""

    def __init__(self, core: ScriptedCore) -> None:
        self._core = core
        self.is_sleeping = False

    def execute_model(self, output: SchedulerOutput, non_block: bool = False) -> Any:
        """The step goes off; what comes back is asked for when the loop waits for it."""
        return _Answer(self._core, output)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Sampling is part of the same answer."""
        return _Answer(self._core, self._core.newest())

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The drafter's proposals, if the script has them next."""
        return self._core.drafts()

    def collective_rpc(self, method: str, *args: Any) -> None:
        """Nothing to wait for."""

    def reset_mm_cache(self) -> None:
        """There is none."""

    def reset_encoder_cache(self) -> None:
        """There is none."""


class _Answer(Future):  # type: ignore[type-arg]
    """What a step returns, decided when the loop waits for it."""

    def __init__(self, core: ScriptedCore, output: SchedulerOutput) -> None:
        super().__init__()
        self._core = core
        self._output = output

    def result(self, timeout: float | None = None) -> Any:
        return self._core.answer(self._output)


class ScriptedCore:
    """The real EngineCoreProc over a scope's scheduler, led through one run."""

    def __init__(self, scope: dict[str, Any], operations: list[list[Any]]) -> None:
        self._driver = Engine(scope)
        self._script = deque(operations)
        self._taken: deque[SchedulerOutput] = deque()
        scheduler = self._driver.scheduler
        self.recorder = Recorder(scheduler)
        self.failed_calls = 0
        self.core = self._build(scope, scheduler)
        schedule = scheduler.schedule

        def noted(*args: Any, **kwargs: Any) -> SchedulerOutput:
            self._expect("schedule")
            output: SchedulerOutput = schedule(*args, **kwargs)
            self._taken.append(output)
            return output

        scheduler.schedule = noted

    def _build(self, scope: dict[str, Any], scheduler: Any) -> EngineCoreProc:
        """The engine without sockets, processes and a model; its loop is the real one."""
        core = object.__new__(EngineCoreProc)
        config = scheduler.vllm_config
        core.vllm_config = config
        core.log_stats = False
        core.scheduler = scheduler
        core.model_executor = ScriptedExecutor(self)
        core.batch_queue_size = config.max_concurrent_batches
        core.batch_queue = None
        if core.batch_queue_size > 1:
            core.batch_queue = deque(maxlen=core.batch_queue_size)
        core.step_fn = core.step if core.batch_queue is None else core.step_with_batch_queue
        core.async_scheduling = config.scheduler_config.async_scheduling
        core.use_spec_decode = core.check_for_draft_tokens = scope["num_speculative_tokens"] > 0
        core.is_mm_encoder_only = core.is_pooling_model = False
        core.mm_receiver_cache = None
        core.aborts_queue = queue.Queue()
        core.input_queue = queue.Queue()
        core.output_queue = queue.Queue()
        core.process_input_queue_block = False
        core.engines_running = False
        core.publish_dp_lb_stats = False
        core.shutdown_state = EngineShutdownState.RUNNING
        core._idle_state_callbacks = []
        return core

    def _expect(self, name: str) -> list[Any]:
        if not self._script or self._script[0][0] != name:
            comes = self._script[0][0] if self._script else "the end"
            raise Parted(f"the engine's loop takes {name}, the run goes on with {comes}")
        return self._script.popleft()

    def newest(self) -> SchedulerOutput:
        """The step that was scheduled last."""
        return self._taken[-1]

    def run(self) -> str | None:
        """Go round the real loop until the script ends; says where the two part, if they do."""
        try:
            while self._script:
                before = len(self._script)
                self._deliver()
                if not self._script:
                    self.core._process_input_queue()
                    break
                self.core._process_input_queue()
                self.core._process_engine_step()
                if len(self._script) == before:
                    return f"the engine's loop does nothing, the run has {self._script[0][0]}"
        except Parted as parted:
            return str(parted)
        except EndOfScript:
            pass
        return None

    def _deliver(self) -> None:
        """Put what clients sent by now into the input queue, in order."""
        while self._script and self._script[0][0] in INPUTS:
            name, *arguments = self._script.popleft()
            if name == "add":
                self._send(EngineCoreRequestType.ADD, (self._driver.request(*arguments), 0))
            elif name == "abort":
                self._send(EngineCoreRequestType.ABORT, [self._driver.name(*arguments)])
            elif name == "reset_prefix_cache":
                self._utility("reset_prefix_cache", *arguments)
            elif name == "pause":
                self._utility("pause_scheduler", *arguments)
            elif name == "set_pause_state":
                self._pause(*arguments)

    def _send(self, kind: EngineCoreRequestType, content: Any) -> None:
        self.core.input_queue.put_nowait((kind, content))

    def _utility(self, method: str, *arguments: Any) -> None:
        self._send(EngineCoreRequestType.UTILITY, (0, 0, method, arguments))

    def _pause(self, state: str) -> None:
        """Pause as clients do: `wait` for what runs, `keep` all where it is, caches as they are."""
        if PauseState[state] == PauseState.UNPAUSED:
            self._utility("resume_scheduler")
        else:
            mode = "keep" if PauseState[state] == PauseState.PAUSED_ALL else "wait"
            self._utility("pause_scheduler", mode, False)

    def answer(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """What the oldest step returns; aborts that came meanwhile lie in both queues by then."""
        if self._taken.popleft() is not output:
            raise Parted("the engine's loop waits for another step than the oldest")
        while self._script and self._script[0][0] in ("abort", "observe"):
            name, *arguments = self._script.popleft()
            if name == "abort":
                names = [self._driver.name(*arguments)]
                self.core.aborts_queue.put_nowait(names)
                self._send(EngineCoreRequestType.ABORT, names)
        if not self._script:
            raise EndOfScript
        _name, *arguments = self._expect("output")
        return self._driver.runner_output(output, *arguments)

    def drafts(self) -> DraftTokenIds | None:
        """The proposals that the script has next."""
        if not self._script:
            raise EndOfScript
        _name, drafts = self._expect("drafts")
        return self._driver.draft_token_ids(drafts)


def tie(
    scope: dict[str, Any], operations: list[list[Any]], script: list[list[Any]] | None = None
) -> dict[str, Any]:
    """One run through both loops: the calls of each, and where the real one parted from it.

    `script` has the engine's operations where they differ: `["pause", mode, clear]` is a client's
    call, which the scheduler hears of as several, now and when the engine is idle.

    An abort that finds its step under way is sent twice, by the abort queue and by the input queue;
    the second is left out of the calls, if it comes.
    """
    driver = Engine(scope)
    recorder = Recorder(driver.scheduler)
    for name, *arguments in operations:
        getattr(driver, name)(*arguments)
    core = ScriptedCore(scope, operations if script is None else script)
    parted = core.run()
    return {"driver": recorder.calls, "core": core.recorder.calls, "parted": parted}


class Ties:
    """Answers ties; a run that makes vLLM raise is answered with the place."""

    def answer(self, operation: list[Any]) -> Any:
        """The answer to one operation."""
        name, *arguments = operation
        if name != "tie":
            raise ValueError(f"operation {name!r}: allowed is tie")
        try:
            return tie(*arguments)
        except Exception as error:
            where = vllm_location(error)
            if where is None:
                raise
            return {"raised": f"{type(error).__name__} in {where}: {error}"}


def main() -> None:
    """Serve standard input; the argument is the descriptor to answer on."""
    serve_on(int(sys.argv[1]), Ties().answer)


if __name__ == "__main__":
    main()
