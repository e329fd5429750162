"""One state machine for Hypothesis, over the model, the real classes, or both in lockstep.

Hypothesis draws the scope and the actions, raises its targets, and shrinks what fails. A rule is
any enabled action, drawn with the device's answers; or a burst of them from the world's own
generator; or some runs of another scope, drawn from a seed: what Hypothesis draws value by value
shrinks well, but repeats itself. No kind of action has a rule of its own: Hypothesis switches
rules off for a whole example, and without the engine's own steps nothing moves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TypeVar

from hypothesis import seed, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from kvproof.bridge.follow import Difference
from kvproof.checker.minimize import minimize
from kvproof.model.scope import Scope
from kvproof.scopes.draw import Chooser, RandomChooser, Size, draw_scope
from kvproof.trace.render import render
from kvproof.trace.trace import Trace, TraceError, dumps, save
from kvproof.walks.runs import SIZES
from kvproof.walks.worlds import Tally, Violation, World, draw_code

_T = TypeVar("_T")

LONGEST_BURST = 60
MOST_RUNS = 12
SEEDS = st.tuples(*[st.integers(0, 127)] * 4).map(
    lambda digits: sum(digit << (7 * i) for i, digit in enumerate(digits))
)
"""All equally likely: of one large range Hypothesis would draw small numbers again and again."""

FOLDER = Path("counterexamples/random")
EXAMPLES_OF_A_ROUND = 500
"""Hypothesis remembers every example: a long run is made of rounds, each with a seed of its own."""

Open = Callable[[Scope, Tally], World]


class Drawn:
    """Choices that Hypothesis makes, and shrinks."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def pick(self, values: Sequence[_T]) -> _T:
        return values[self.integer(0, len(values) - 1)]


@dataclass
class Hunt:
    """What the machines of one hunt share: the worlds, the sizes of scopes, what they saw.

    `examples` counts the examples up to the first failure, that one included.
    """

    open_world: Open
    sizes: tuple[Size, ...] = SIZES
    rules_off: tuple[str, ...] = ()
    guided: bool = True
    tally: Tally = field(default_factory=Tally)
    examples: int = 0
    failed: bool = False


def machine(hunt: Hunt) -> type[RuleBasedStateMachine]:
    """The state machine of a hunt."""

    class Machine(RuleBasedStateMachine):
        @initialize(data=st.data())
        def open(self, data: st.DataObject) -> None:
            hunt.examples += not hunt.failed
            self.seen = Tally()
            self._open(Drawn(data))

        @rule(data=st.data())
        def act(self, data: st.DataObject) -> None:
            self._again_if_over()
            code = draw_code(self.world.compiled, self.world.state, Drawn(data))
            with self._noting_failure():
                if code is None:
                    self.world.over = True
                else:
                    self.world.take(code)

        @rule(steps=st.integers(1, LONGEST_BURST), draws=SEEDS)
        def burst(self, steps: int, draws: int) -> None:
            self._again_if_over()
            with self._noting_failure():
                self.world.burst(steps, draws, guided=hunt.guided)

        @rule(runs=st.integers(1, MOST_RUNS), draws=SEEDS)
        def bursts_elsewhere(self, runs: int, draws: int) -> None:
            self._open(RandomChooser(draws))
            for k in range(runs):
                if k:
                    self.world = hunt.open_world(self.scope, self.seen)
                with self._noting_failure():
                    self.world.burst(LONGEST_BURST, draws + k, guided=hunt.guided)

        def _open(self, choose: Chooser) -> None:
            scope = draw_scope(choose, choose.pick(hunt.sizes))
            self.scope = scope.with_rules_off(*hunt.rules_off)
            self.world = hunt.open_world(self.scope, self.seen)

        @contextmanager
        def _noting_failure(self) -> Iterator[None]:
            try:
                yield
            except AssertionError:
                hunt.failed = True
                raise

        def _again_if_over(self) -> None:
            if self.world.over:
                self.world = hunt.open_world(self.scope, self.seen)

        def teardown(self) -> None:
            if hasattr(self, "seen"):
                hunt.tally.add(self.seen)
                for name, value in self.seen.targets().items():
                    target(value, label=name)

    return Machine


def run(hunt: Hunt, options: settings, first_seed: int) -> Violation | Difference | None:
    """Run the machines of a hunt; what fails first, shrunk by Hypothesis, None if nothing does."""
    left = options.max_examples
    for number in count(first_seed):
        of_round = settings(options, max_examples=min(left, EXAMPLES_OF_A_ROUND))
        try:
            run_state_machine_as_test(seed(number)(machine(hunt)), settings=of_round)
        except (Violation, Difference) as wrong:
            return wrong
        left -= of_round.max_examples
        if left <= 0:
            break
    return None


def smallest(trace: Trace) -> Trace:
    """The project's own minimum of a trace, where the model shows what is broken."""
    if not trace.broken:
        return trace
    try:
        return minimize(trace, trace.broken)
    except TraceError:
        return trace


def account(wrong: Violation | Difference, *, keep: bool) -> str:
    """What went wrong, its shortest run, and the command that replays it.

    Saved under counterexamples/ only with `keep`.
    """
    trace = smallest(wrong.trace)
    digest = sha256(dumps(trace)).hexdigest()[:8]
    folder = FOLDER if keep else Path(tempfile.gettempdir())
    path = folder / f"{'-'.join(trace.broken) or 'difference'}-{digest}.json"
    save(trace, path, force=True)
    with_vllm = "" if trace.broken else " --vllm"
    return f"{wrong}\n\n{render(trace)}\nkvproof replay {path}{with_vllm}"
