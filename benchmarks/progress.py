"""What the graph pass of a progress check costs: `python -m benchmarks.progress`.

A plain check and a progress check of the same scope take turns; the ratio is that of their times.
"""

from __future__ import annotations

from statistics import median

from kvproof.checker.check import check
from kvproof.checker.check_progress import check_progress
from kvproof.scopes.named import SCOPES

ROUNDS = 3
# Scopes that take long enough to time.
TIMED = ("shared-prefix", "pipeline", "depth-3", "consumer", "crowd")


def main() -> None:
    """Print the figures."""
    for name in TIMED:
        plain, whole, graph = [], [], []
        for _ in range(ROUNDS):
            plain.append(check(SCOPES[name]).result.seconds)
            done = check_progress(SCOPES[name])
            whole.append(done.seconds)
            graph.append(done.graph_seconds)
        ratios = [a / b for a, b in zip(whole, plain, strict=True)]
        print(
            f"{name:<15} {done.result.transitions:>9,} transitions: plain {median(plain):.2f} s, "
            f"with progress {median(whole):.2f} s, of which the graph pass {median(graph):.2f} s; "
            f"{median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"{done.bytes_per_edge:.1f} bytes an edge"
        )


if __name__ == "__main__":
    main()
