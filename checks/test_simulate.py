"""The multi-turn workload on the real classes: a short run where memory is short, and in lockstep.

Longer runs are commands; docs/multi-turn.md has what they measured.
"""

from __future__ import annotations

import pytest

from kvproof.bridge import environment
from kvproof.simulate.comparison import Cause, compare_runs
from kvproof.simulate.real import run_on_vllm
from kvproof.simulate.scaled import run_episodes
from kvproof.simulate.serq import Variant, run_on_serq
from kvproof.workload.sessions import draw
from kvproof.workload.settings import Settings

pytestmark = pytest.mark.skipif(
    environment.find() is None,
    reason="the real vLLM is not here: `make vllm` builds its environment",
)

TIGHT = Settings(rate=2.0, pool=700, horizon=20.0, warmup=0.0)


def test_a_short_pool_preempts_evicts_and_all_holds() -> None:
    run = run_on_vllm(draw(TIGHT), TIGHT)
    assert run.broken is None
    assert sum(record.preemptions for record in run.records) > 0
    assert any(record.hit == 0 and record.turn > 0 for record in run.records)
    for record in run.records:
        assert len(record.admissions) <= record.preemptions + 1


def test_serq_with_the_two_rules_of_vllm_differs_in_nothing() -> None:
    pytest.importorskip("pyserq")
    serq = run_on_serq(TIGHT, Variant.RESERVED)
    run = run_on_vllm(serq.sessions, TIGHT)
    done = compare_runs(serq, run.records, Variant.RESERVED)
    assert done.requests > 50
    assert sum(record.preemptions for record in run.records) > 0
    assert done.equal == done.requests


def test_serq_without_them_differs_and_every_difference_has_a_cause() -> None:
    pytest.importorskip("pyserq")
    serq = run_on_serq(TIGHT, Variant.WHOLE)
    run = run_on_vllm(serq.sessions, TIGHT)
    done = compare_runs(serq, run.records, Variant.WHOLE)
    assert done.causes[Cause.LOOKUP] > 0
    assert done.causes[Cause.UNKNOWN] == 0


def test_model_and_real_classes_agree_at_the_models_sizes() -> None:
    done = run_episodes(Settings(depth=2, seed=4), 2)
    assert [one.difference for one in done] == [(), ()]
    assert all(record.finished is not None for one in done for record in one.records)
    assert any(record.hit for one in done for record in one.records)
