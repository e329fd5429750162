"""Many random runs, one drawn scope each: a function of a seed."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.model.scope import MAX_REQUESTS, Scope
from kvproof.scopes.draw import Chooser, RandomChooser, Size, draw_scope
from kvproof.walks.worlds import Tally, World

SIZES: tuple[Size, ...] = ("tiny",) * 6 + ("small",) * 5 + ("medium",) * 3 + ("large",)
"""Sizes of scopes as often as they are drawn."""


def draw_run(
    choose: Chooser, size: Size | None, name: str, most_requests: int = MAX_REQUESTS
) -> Scope:
    """The scope of a run; its size is drawn too where none is given."""
    chosen = choose.pick(SIZES) if size is None else size
    return draw_scope(choose, chosen, name, most_requests=most_requests)


def random_runs(
    open_world: Callable[[Scope, Tally], World],
    runs: int,
    *,
    steps: int = 60,
    seed: int = 0,
    size: Size | None = None,
    guided: bool = True,
    prepare: Callable[[Scope], Scope] = lambda scope: scope,
    watch: Callable[[int, int], None] | None = None,
) -> Tally:
    """Run so many drawn scopes for at most `steps` actions each; Ctrl-C ends it with what is done.

    `prepare` is what becomes of a drawn scope before its run: mends, say.
    Raises what the worlds raise: Violation, or Difference in lockstep.
    """
    tally = Tally()
    try:
        for i in range(runs):
            choose = RandomChooser(f"{seed}-{i}")
            scope = prepare(draw_run(choose, size, f"random-{seed}-{i}"))
            world = open_world(scope, tally)
            world.burst(steps, choose.integer(0, (1 << 30) - 1), guided=guided)
            if watch is not None:
                watch(i + 1, runs)
    except KeyboardInterrupt:
        tally.interrupted = True
    return tally
