"""What the workers know of loads and sendings, and so what the output of a step may report.

A worker hears of a load, and of a request's end, with the step that carries it, and answers its
steps in their order. The names of the promises are those of spec/contract.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

_NO_LOADS: Mapping[str, frozenset[int]] = {}


class Transfers(NamedTuple):
    """What was told by a number of steps: loads under way with their blocks, ended requests.

    Never changed. `loads_of_step` are the blocks that the last of the steps loads for itself.
    """

    loading: Mapping[str, frozenset[int]] = _NO_LOADS
    ended: frozenset[str] = frozenset()
    loads_of_step: frozenset[int] = frozenset()

    def told(self, output: Any) -> Transfers:
        """The same with one more step: a SchedulerOutput that carries a script's loads."""
        loads = getattr(output.kv_connector_metadata, "loads", ())
        begun = {one.request_id: frozenset(one.block_ids) for one in loads if one.is_async}
        of_step = frozenset(b for one in loads if not one.is_async for b in one.block_ids)
        return Transfers(
            {**self.loading, **begun}, self.ended.union(output.finished_req_ids), of_step
        )

    def broken_by(
        self, recved: Collection[str], sent: Collection[str], invalid: Collection[int]
    ) -> str | None:
        """The promise that a report with the last step's output breaks, and why; None if none."""
        for name in recved:
            if name not in self.loading:
                return f"loads-reported-from-their-step-on: no step so far loads for {name}"
        for name in sent:
            if name not in self.ended:
                return f"sendings-reported-once-the-end-is-told: no step so far tells of {name}"
        written = self.loads_of_step.union(*self.loading.values())
        for block in invalid:
            if block not in written:
                return f"failed-blocks-by-the-completion: no load is under way to block {block}"
        return None

    def reported(self, recved: Collection[str], sent: Collection[str]) -> Transfers:
        """What is left after a report."""
        if not recved and not sent:
            return self
        left = {name: blocks for name, blocks in self.loading.items() if name not in recved}
        return self._replace(loading=left, ended=self.ended.difference(sent))
