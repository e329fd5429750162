from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kvproof
from kvproof import api

ROOT = Path(__file__).parent.parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def test_the_examples_of_the_page_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "api.md")
    done = doctest.testfile(page, module_relative=False, optionflags=FLAGS)
    assert done.attempted > 20
    assert done.failed == 0
    assert doctest.testmod(kvproof, optionflags=FLAGS).failed == 0


def test_every_name_of_the_front_door_is_there_and_says_what_it_is() -> None:
    assert set(api.__all__) == set(kvproof.__all__) - {"__version__"}
    assert dir(kvproof) == sorted(kvproof.__all__)
    for name in api.__all__:
        value = getattr(kvproof, name)
        assert value is getattr(api, name)
        if callable(value):
            assert inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kvproof.nonsense  # noqa: B018


def test_no_room_stands_where_the_front_door_has_a_function() -> None:
    loaded = (
        "import kvproof, kvproof.cli.main, pkgutil, importlib\n"
        "for m in pkgutil.walk_packages(kvproof.__path__, 'kvproof.'):\n"
        "    if '.vllm.' not in m.name and not m.name.endswith('__main__'):\n"
        "        importlib.import_module(m.name)\n"
        "print([n for n in kvproof.__all__ if type(getattr(kvproof, n)).__name__ == 'module'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_results_show_in_a_notebook_what_they_print() -> None:
    done = kvproof.check("shared-prefix", rules_off=["evict_hash_on_reuse"])
    assert done.trace is not None
    for shown in (
        done,
        done.trace,
        kvproof.replay(done.trace),
        kvproof.check_progress("two-equal"),
    ):
        text = shown._repr_html_()
        assert text.startswith("<pre>")
        assert "&lt;" in text or "<" not in text[5:-6]
    assert f"broken: {done.trace.broken[0]}" in str(done)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kvproof.check("two-equals"), "scope = 'two-equals': allowed is two-equal"),
        (lambda: kvproof.check("two-equal", rules_off=["x"]), "rules_off = 'x': allowed is evict"),
        (lambda: kvproof.check("two-equal", mends=["x"]), "mends = 'x': allowed is withdraw_"),
        (lambda: kvproof.check("two-equal", past=["x"]), "past = 'x': allowed is BlockConserv"),
        (lambda: kvproof.check("two-equal", max_states=0), "max_states = 0: allowed is more"),
        (lambda: kvproof.prove("x"), "name = 'x': allowed is "),
        (lambda: kvproof.check("missing.toml"), "missing.toml"),
        (lambda: kvproof.load("missing.json"), "missing.json"),
    ],
)
def test_what_a_user_can_mend_is_said(call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(kvproof.KvproofError) as raised:
        call()
    assert says in str(raised.value)


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    trace = kvproof.load(ROOT / "counterexamples" / "free_tail_first.json")
    lasso = kvproof.load(ROOT / "counterexamples" / "progress" / "padding-never-fits.json")
    assert isinstance(lasso, kvproof.Lasso)
    for source in (trace, lasso):
        path = tmp_path / f"{type(source).__name__}.json"
        kvproof.save(source, path)
        with pytest.raises(kvproof.KvproofError, match="exists"):
            kvproof.save(lasso, path)
        kvproof.save(source, path, force=True)
        assert kvproof.load(path) == source
