"""The model in the place of the real classes: answers as they do, with rules off if it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvproof.bridge import observation
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import Scope
from kvproof.trace.actions import Action
from kvproof.trace.codes import code_of
from kvproof.trace.trace import step


class ModelTwin:
    """The model of a scope with `off` switched off, observed like the real classes."""

    release = "twin"

    def __init__(self, off: tuple[str, ...] = ()) -> None:
        self._off = off

    def start(self, scope: Scope) -> None:
        self._scope = scope
        self.compiled = compile_scope(scope.with_rules_off(*self._off))
        self.state = self.compiled.initial()
        self.past = observation.Past()

    def call(self, operation: list[Any], action: Action) -> list[Any]:
        code = code_of(self.compiled, self.state, action)
        assert code is not None, f"{action} is enabled by what is observed, but not in the model"
        before = self.state
        self.state, report, _broken = step(self.compiled, before, code)
        # What is asked for depends on the rules that whoever asks believes in.
        asked = observation.operation(compile_scope(self._scope), before, action, report)
        assert operation == asked
        if self.state.assertion:
            return [["error", "AssertionError", "", "the model"], None]
        # What the model leaves unstated without a rule has to be answered all the same.
        stated = replace(self.compiled, scope=self._scope)
        told = (stated, before, self.state, action, report, self.past)
        result = observation.expected_result(*told)
        self.past = observation.passed(*told)
        return [result, observation.observe(stated, self.state, self.past)]
