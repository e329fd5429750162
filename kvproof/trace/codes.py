"""The numbers that the search has for actions: named actions to codes and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvproof.model import engine
from kvproof.model.bounds import max_actions, max_calls
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.native.record import Record
from kvproof.trace.action_kinds import ACTION_KINDS, ActionKind
from kvproof.trace.actions import Action


def kind_of(code: int) -> ActionKind:
    """The entry of a code's kind."""
    return ACTION_KINDS[Kind(code % engine.KINDS)]


def name_action(compiled: Compiled, state: Record, code: int) -> Action:
    """The action that `code` stands for in `state`."""
    return kind_of(code).decode(compiled, state, code // engine.KINDS)


def code_of(
    compiled: Compiled, state: Record, action: Action, *, nearest: bool = False
) -> int | None:
    """The code of a named action in a state, None where it is not enabled.

    With `nearest` an answer that the device cannot give is replaced by the first one that it can.
    """
    entry = ACTION_KINDS[action.kind]
    argument = entry.encode(compiled, state, action, nearest=nearest)
    if argument is None:
        return None
    call = 0 if entry.answers is not None else argument
    if int(action.kind) + engine.KINDS * call not in enabled_calls(compiled, state):
        return None
    return int(action.kind) + engine.KINDS * argument


def enabled_codes(compiled: Compiled, state: Record) -> NDArray[np.int32]:
    """Codes of the actions enabled in a state."""
    out: NDArray[np.int32] = np.zeros(max_actions(compiled.scope), np.int32)
    return out[: engine.enabled_actions(state, compiled.c, out)]


def enabled_calls(compiled: Compiled, state: Record) -> list[int]:
    """Codes of the enabled actions, one for each call: the device's first answer."""
    out: NDArray[np.int32] = np.zeros(max_calls(compiled.scope), np.int32)
    codes: list[int] = out[: engine.enabled_calls(state, compiled.c, out)].tolist()
    return codes
