from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import convert

from kvproof.spec.identity import Identity
from tests.test_cli import ROOT, kvproof, results


def test_a_scope_without_hangs_exits_with_0_and_says_what_was_examined() -> None:
    done = kvproof("check-progress", "two-loads")
    assert done.returncode == 0
    assert "two-loads: progress holds" in done.stdout
    assert "work pending in 1,344 states; 103 cycles" in done.stdout
    assert "0 of them fair" in done.stdout
    assert "bytes an edge" in done.stdout


def test_a_hang_exits_with_1_and_its_lasso_is_written_and_replayed(tmp_path: Path) -> None:
    lasso = tmp_path / "lasso.json"
    arguments = ("check-progress", "two-loads", "--rule-off", "drain_block_holders_first")
    done = kvproof(*arguments, "--to", str(lasso))
    assert done.returncode == 1
    assert "broken: NothingStuck, EveryRequestFinishes" in done.stdout
    replayed = kvproof("replay", str(lasso))
    assert replayed.returncode == 1
    assert "for ever:" in replayed.stdout
    as_json = results(kvproof("replay", "--json", str(lasso)).stdout)
    assert as_json["broken"] == ["NothingStuck", "EveryRequestFinishes"]
    again = kvproof(*arguments, "--to", str(lasso))
    assert again.returncode == 2
    assert "--force" in again.stderr


def test_an_open_finding_is_named() -> None:
    done = kvproof("check-progress", "producer")
    assert done.returncode == 1
    assert "producer-drops-what-it-computes" in done.stdout


def test_a_search_that_ends_early_exits_with_3_and_claims_nothing() -> None:
    done = kvproof("check-progress", "crowd", "--max-states", "1000", "--json")
    assert done.returncode == 3
    (report,) = results(done.stdout)
    assert report["outcome"] == "bounded"
    assert report["cut_short"] == "the search ended early (states)"
    assert report["lassos"] == []


def test_a_sweep_for_progress_lists_each_way_of_getting_nowhere_once() -> None:
    done = kvproof("sweep-progress", "--scopes", "3", "--json")
    assert done.returncode == 0
    report = results(done.stdout)
    assert report["scopes"] == 3
    assert sum(report["outcomes"].values()) == 3
    identities = [str(convert(one["identity"], Identity)) for one in report["lassos"]]
    assert identities == sorted(set(identities))
    assert all(one["finding"] for one in report["lassos"])
    text = kvproof("sweep-progress", "--scopes", "3").stdout
    assert "3 scopes:" in text
    assert all(identity in text for identity in identities)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("check-progress", "two-equal", "--coverage"), "--coverage"),
        (("sweep-progress", "--coverage"), "--coverage"),
        (("sweep-progress", "--minutes", "0"), "--minutes"),
        (("sweep", "--strength", "5"), "--strength"),
        (("check-progress", "two-equal", "--max-seconds", "-1"), "--max-seconds"),
    ],
)
def test_a_mistake_of_use_exits_with_2_and_names_it(arguments: tuple[str, ...], named: str) -> None:
    done = kvproof(*arguments)
    assert done.returncode == 2
    assert named in done.stderr


def test_the_recorded_lassos_replay() -> None:
    folder = ROOT / "counterexamples" / "progress"
    done = kvproof("replay", str(folder / "one-token-load-goes-round.json"))
    assert done.returncode == 1
    assert "for ever:" in done.stdout
