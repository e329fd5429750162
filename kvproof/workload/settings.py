"""The options of a simulation, checked by name."""

from __future__ import annotations

from typing import Literal, NoReturn

import msgspec

from kvproof.errors import KvproofError

MAX_SIMULATED_DEPTH = 2
"""Steps in flight: 1 is the synchronous scheduler, 2 asynchronous scheduling."""


class SimulateError(KvproofError, ValueError):
    """An option that makes no sense: names it, its value and what is allowed."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulation: the engine, the cost of its steps, and the clients; the defaults are serQ's.

    Times are seconds, sizes tokens, `pool` blocks without the null block. A step costs
    max(omega + beta x resident, a x scheduled): `resident` counts the tokens that the blocks of
    the step's requests have room for. `check_every` steps pass between full checks.

    A first turn brings a number of tokens within `first_turn`, a later one `mean_new` on average,
    and a turn wants `mean_out` and one. `max_model_len` 0 stands for what fits the empty pool.
    """

    rate: float = 0.3
    pool: int = 10_000
    block_size: int = 16
    budget: int = 8192
    max_requests: int = 16
    policy: Literal["fcfs", "priority"] = "fcfs"
    depth: int = 1
    seed: int = 1
    horizon: float = 2000.0
    warmup: float = 200.0
    continue_probability: float = 0.9
    tool_time: float = 3.0
    first_turn: tuple[float, float] = (1000.0, 3000.0)
    mean_new: float = 500.0
    mean_out: float = 200.0
    max_model_len: int = 0
    a: float = 2e-5
    omega: float = 2e-4
    beta: float = 2e-9
    check_every: int = 5000

    def __post_init__(self) -> None:
        _above("--rate", self.rate, 0, 10_000)
        _within("--pool", self.pool, 1, 1_000_000, "blocks without the null block")
        _within("--block-size", self.block_size, 1, 1024)
        _within("--max-requests", self.max_requests, 1, 4096)
        _within("--budget", self.budget, self.max_requests, 1_000_000, "from --max-requests")
        _within("--depth", self.depth, 1, MAX_SIMULATED_DEPTH, "2 is asynchronous scheduling")
        _within("--seed", self.seed, 0, 2**63 - 1)
        _above("--horizon", self.horizon, 0, 1e7)
        _within("--warmup", self.warmup, 0, self.horizon, "up to --horizon")
        if self.policy not in ("fcfs", "priority"):
            _refuse("--policy", self.policy, "fcfs or priority")
        if not 0 <= self.continue_probability < 1:
            _refuse("--continue", self.continue_probability, "0 <= p < 1")
        _above("--tool-time", self.tool_time, 0, 1e6)
        _within("max_model_len", self.max_model_len, 0, self.pool * self.block_size, "the pool")
        _above("a", self.a, 0, 1)
        _above("omega", self.omega, 0, 1)
        _within("beta", self.beta, 0, 1)
        _within("--check-every", self.check_every, 0, 10**9, "0: only at the end")

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return self.max_model_len or self.pool * self.block_size

    def cost(self, scheduled: int, resident: int) -> float:
        """Seconds that a step takes; one that schedules nothing does not reach the device."""
        if scheduled == 0:
            return 0.0
        return max(self.omega + self.beta * resident, scheduled * self.a)


def _refuse(option: str, value: object, allowed: str) -> NoReturn:
    raise SimulateError(f"{option} = {value!r}: allowed is {allowed}")


def _within(option: str, value: float, low: float, high: float, why: str = "") -> None:
    if not low <= value <= high:
        _refuse(option, value, f"{low:,}..{high:,}" + (f" ({why})" if why else ""))


def _above(option: str, value: float, low: float, high: float) -> None:
    if not low < value <= high:
        _refuse(option, value, f"more than {low:,}, up to {high:,}")
