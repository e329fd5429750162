"""Random runs in lockstep: the model leads, the real classes follow, answers are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.differences import Expected, Field, compare, told
from kvproof.bridge.lockstep import expect
from kvproof.bridge.observed import ObservedWorld, RealClasses
from kvproof.model import engine
from kvproof.model.engine import Kind
from kvproof.model.scope import Scope
from kvproof.trace.codes import name_action
from kvproof.trace.trace import Trace, from_codes
from kvproof.walks.worlds import ModelWorld, Tally, World

On = Literal["model", "vllm", "lockstep"]


class Difference(AssertionError):
    """A run after whose last action the model and vLLM differ, one line a field."""

    def __init__(self, trace: Trace, fields: tuple[Field, ...]) -> None:
        super().__init__("\n".join(told(fields)))
        self.trace = trace
        self.fields = fields


class LockstepWorld(ModelWorld):
    """Runs of the model with every action taken by the real classes too."""

    def __init__(self, scope: Scope, tally: Tally, client: Client) -> None:
        super().__init__(scope, tally)
        self._client = client
        self._at = self.compiled.initial()
        self._followed: tuple[int, ...] = ()
        self._past = observation.Past()
        client.run([observation.new_engine(scope)])

    def compare(self, codes: tuple[int, ...]) -> None:
        """Send the actions and compare what comes back.

        An output only makes sense to a scheduler that has planned its step alike: what follows a
        schedule is sent when its answer is known to be equal.
        """
        batch: list[list[Any]] = []
        awaited: list[Expected] = []
        for code in codes:
            action = name_action(self.compiled, self._at, code)
            before, after = self._at, self._at.copy()
            report = self.compiled.new_report()
            engine.apply(after, self.compiled.c, report, code)
            self._followed += (code,)
            operation, expected = expect(
                self.compiled, before, after, action, report, self._followed, self._past
            )
            self._past = expected.past
            batch.append(operation)
            awaited.append(expected)
            self._at = after
            if action.kind == Kind.SCHEDULE:
                self._exchange(batch, awaited)
                batch, awaited = [], []
        self._exchange(batch, awaited)

    def _exchange(self, batch: list[list[Any]], awaited: list[Expected]) -> None:
        for expected, answer in zip(awaited, self._client.run(batch), strict=True):
            fields = compare(expected, answer)
            if fields:
                raise Difference(from_codes(self.compiled.scope, expected.codes), fields)


def opener(on: On, client: Client | None) -> Callable[[Scope, Tally], World]:
    """What opens a world on the model, on the real classes, or on both; these need a client."""
    if on == "model":
        return ModelWorld
    assert client is not None, f"{on} needs a client"
    if on == "vllm":
        return lambda scope, tally: ObservedWorld(scope, tally, RealClasses(client))
    return lambda scope, tally: LockstepWorld(scope, tally, client)
