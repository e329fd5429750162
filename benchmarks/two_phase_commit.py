"""Speed and memory of the search on two-phase commit: `python -m benchmarks.two_phase_commit`.

Both searches keep traces and check the invariant in every state.
"""

from __future__ import annotations

import time
from statistics import median

from kvproof.search.explore import explore
from tests.two_phase_commit import TwoPhaseCommit, plain_search

ROUNDS = 5
LARGE = 8
SMALL = 7


def plain_states_per_second(managers: int) -> float:
    """Distinct states a second of the plain Python search."""
    start = time.perf_counter()
    result = plain_search(managers)
    return len(result.found) / (time.perf_counter() - start)


def main() -> None:
    """Print the median of several runs; the runs to compare take turns."""
    explore(TwoPhaseCommit(3))  # loads or compiles the kernels
    runs = [explore(TwoPhaseCommit(LARGE)) for _ in range(ROUNDS)]
    speed = median(run.states_per_second for run in runs)
    print(
        f"{LARGE} managers: {runs[0].states:,} distinct states, {runs[0].generated:,} generated, "
        f"{speed:,.0f} distinct/s, {speed * runs[0].generated / runs[0].states:,.0f} generated/s "
        f"(median of {ROUNDS}), {runs[0].bytes_per_state:.1f} bytes a state"
    )
    ratios = []
    for _ in range(ROUNDS):
        compiled = explore(TwoPhaseCommit(SMALL))
        ratios.append(compiled.states_per_second / plain_states_per_second(SMALL))
    print(
        f"{SMALL} managers: {median(ratios):.1f} times the speed of plain Python "
        f"({min(ratios):.1f} to {max(ratios):.1f}), {compiled.bytes_per_state:.1f} bytes a state"
    )


if __name__ == "__main__":
    main()
