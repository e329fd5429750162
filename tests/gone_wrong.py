"""The driver over real classes with something wrong in them, for the tests of what comes of it.

Runs in vLLM's interpreter, `python -m tests.gone_wrong FD`, and answers as the driver does. The
move `["wrong", name]` puts one of WRONG in, and None takes it out.
"""

from __future__ import annotations

import ast
import sys
from contextlib import ExitStack
from typing import Any

from kvproof.vllm.driver import Driver, serve_on
from kvproof.vllm.edits import Change, Edit, Place, edited, preceded_by

SECONDS = 2.0

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_ADD = f"{_SCHEDULER}.add_request"
_PREEMPT = f"{_SCHEDULER}._preempt_request"
_PREEMPTED = Place(ast.Assert, ("RUNNING",))
_ADDED = Place(ast.Assign, ("requests", "request_id"), "targets")


def _before(function: str, place: Place, text: str) -> tuple[Edit, ...]:
    return (Edit(function, (Change(place, preceded_by(text)),)),)


WRONG: dict[str, tuple[Edit, ...]] = {
    "a preemption is endless": _before(_PREEMPT, _PREEMPTED, "while True: pass"),
    "a handler takes what stops a call": _before(
        _PREEMPT,
        _PREEMPTED,
        "while True:\n    try:\n        self = self\n    except Exception:\n        pass",
    ),
    "a preemption loses an attribute": _before(
        _PREEMPT, _PREEMPTED, "del request.is_prefill_chunk"
    ),
    "a preemption loses what snapshots copy": _before(
        _PREEMPT, _PREEMPTED, "del self.kv_cache_manager.block_pool.cached_block_hashes_by_block"
    ),
    "the free list goes round": _before(
        _ADD,
        _ADDED,
        "head = self.kv_cache_manager.block_pool.free_block_queue.fake_free_list_head\n"
        "head.next_free_block.next_free_block = head.next_free_block",
    ),
}


class GoneWrong(Driver):
    """The driver, with something wrong below it."""

    def __init__(self) -> None:
        super().__init__(SECONDS)
        self._wrong = ExitStack()

    def answer(self, operation: list[Any]) -> list[Any] | None:
        """The answer to one operation; None for a change."""
        if operation[0] != "wrong":
            return super().answer(operation)
        self._wrong.close()
        if operation[1] is not None:
            self._wrong.enter_context(edited(WRONG[operation[1]]))
        return None


def main() -> None:
    """Serve standard input; the argument is the descriptor to answer on."""
    serve_on(int(sys.argv[1]), GoneWrong().answer)


if __name__ == "__main__":
    main()
