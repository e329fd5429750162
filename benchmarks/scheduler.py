"""Speed of the search on scheduler scopes: transitions a second, bytes a state, start-up."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvproof.checker.check import check
from kvproof.scopes.named import SCOPES

ROUNDS = 5
# Scopes that take long enough to time.
TIMED = ("crowd", "shared-prefix", "pipeline", "depth-3", "consumer")
ROOT = Path(__file__).parent.parent


def start_up(cache: str) -> float:
    """Seconds of a whole `kvproof check two-equal` with this kernel cache."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from kvproof.cli.main import main; main()", "check", "two-equal"],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env=environment,
    )
    return time.perf_counter() - started


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as cache:
        cold = start_up(cache)
        warm = statistics.median(start_up(cache) for _ in range(ROUNDS))
    print(f"first use, kernels compiled: {cold:.1f} s; later starts: {warm:.1f} s")
    for name in TIMED:
        results = [check(SCOPES[name]).result for _ in range(ROUNDS if name != "crowd" else 3)]
        speeds = [result.transitions / result.seconds for result in results]
        last = results[-1]
        print(
            f"{name:<15} {last.states:>9,} states, {last.transitions:>9,} transitions: "
            f"{statistics.median(speeds):>9,.0f} transitions/s "
            f"({min(speeds):,.0f} to {max(speeds):,.0f}), {last.bytes_per_state:.0f} bytes a state"
        )


if __name__ == "__main__":
    main()
