"""The set of states is exact up to fingerprints, at every size, and its kernels are never stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvproof.native import jit
from kvproof.native.record import Field, Schema, clear
from kvproof.search import store
from kvproof.search.store import Store, fingerprint
from kvproof.search.system import Words

ROOT = Path(__file__).resolve().parent.parent
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
BATCHES = 6 if INTERPRETED else 60

WORD = 0x0123456789ABCDEF
XXH64 = {
    1: 0xEA3C52081E9843EC,
    3: 0xDDB08DAAD008F62F,
    4: 0x110D811BC0F08A35,
    9: 0xAFDAE5B55FFA559C,
    11: 0x0C856FA432757C66,
}
"""Digests of WORD, 2 * WORD, ... as little-endian words, by the reference implementation."""


def digest(words: list[int]) -> int:
    with np.errstate(over="ignore"):
        return int(fingerprint(np.array([words], np.uint64), 0))


def insert(
    states: Store, rows: Words, *, base: int = 0, targets: NDArray[np.uint32] | None = None
) -> NDArray[np.intp]:
    """Insert rows, each reached from state `base` by an action that is its position."""
    codes = np.arange(len(rows), dtype=np.int32)
    return states.insert(rows, np.zeros_like(codes), codes, base, targets)


@pytest.mark.parametrize("words", sorted(XXH64))
def test_the_fingerprint_is_xxh64(words: int) -> None:
    assert digest([WORD * (i + 1) % 2**64 for i in range(words)]) == XXH64[words]


@pytest.mark.parametrize("words", [1, 3, 4, 9])
def test_every_bit_of_a_state_moves_about_half_of_the_fingerprint(words: int) -> None:
    plain = digest([0] * words)
    for i in range(words):
        for bit in range(64):
            state = [0] * words
            state[i] = 1 << bit
            assert 12 <= (digest(state) ^ plain).bit_count() <= 52


@pytest.mark.parametrize("words", [1, 2, 5, 9])
def test_new_states_and_numbers_agree_with_a_dict_while_the_table_grows(words: int) -> None:
    rng = np.random.default_rng(words)
    states = Store()
    known: dict[bytes, int] = {}
    for _ in range(BATCHES):
        # Few values a word, and rows drawn twice, so that batches repeat old and own rows.
        rows = rng.integers(0, max(2, int(40_000 ** (1 / words))), (700, words)).astype(np.uint64)
        rows = rng.choice(rows, 1000)
        expected_new = []
        expected_numbers = []
        for k, row in enumerate(rows):
            if row.tobytes() not in known:
                known[row.tobytes()] = len(known)
                expected_new.append(k)
            expected_numbers.append(known[row.tobytes()])
        targets = np.zeros(len(rows), np.uint32)
        new = insert(states, rows, targets=targets)
        assert new.tolist() == expected_new
        assert targets.tolist() == expected_numbers
        assert len(states) == len(known)
    everything = np.array([np.frombuffer(row, np.uint64) for row in known])
    assert states.find(everything).tolist() == list(range(len(known)))
    assert len(known) > (1000 if INTERPRETED else 5000)


def test_states_that_are_not_stored_are_not_found() -> None:
    states = Store()
    insert(states, np.arange(3000, dtype=np.uint64).reshape(-1, 1))
    found = states.find(np.array([[2999], [3000], [0], [2**64 - 1]], np.uint64))
    assert found.tolist() == [2999, -1, 0, -1]


def test_a_state_whose_fingerprint_marks_an_empty_slot_is_stored_once() -> None:
    p1, p2, p4, p5 = (int(p) for p in (store._P1, store._P2, store._P4, store._P5))

    def divide(value: int, by: int) -> int:
        return value * pow(by, -1, 2**64) % 2**64

    def rotate_back(value: int, bits: int) -> int:
        return (value >> bits | value << (64 - bits)) % 2**64

    mixed = rotate_back(divide(-p4, p1), 27) ^ (p5 + 8)
    word = divide(rotate_back(divide(mixed, p1), 31), p2)
    assert digest([word]) == 0

    states = Store()
    rows = np.array([[word], [word]], np.uint64)
    assert insert(states, rows).tolist() == [0]
    assert insert(states, rows).tolist() == []
    assert states.find(rows).tolist() == [0, 0]


def test_the_path_to_a_state_leads_from_its_initial_state_through_its_first_parents() -> None:
    states = Store()
    states.insert_initial(np.array([[7], [7], [8]], np.uint64))
    one = np.zeros(1, np.int32)
    for number, parent, action in ((9, 1, 30), (10, 2, 31), (9, 2, 99), (11, 2, 32)):
        states.insert(np.array([[number]], np.uint64), one, one + action, parent)
    assert states.path_to(0) == (0, ())
    assert states.path_to(1) == (2, ())
    assert states.path_to(3) == (2, (30, 31))
    assert states.path_to(4) == (2, (30, 32))
    assert states.parents.tolist() == [2**32 - 1, 2**32 - 1, 1, 2, 2]
    assert states.actions.tolist() == [0, 2, 30, 31, 32]
    with pytest.raises(IndexError, match="from 0 to 4"):
        states.path_to(5)


def test_a_state_takes_less_than_40_bytes_at_every_size() -> None:
    states = Store()
    rng = np.random.default_rng(0)
    while len(states) < (5_000 if INTERPRETED else 200_000):
        insert(states, rng.integers(0, 2**63, (500, 1)).astype(np.uint64))
        if len(states) > 1000:
            assert states.nbytes < 40 * len(states)
        held = (states._keys, states._numbers, states._parents, states._actions)
        assert states.nbytes == sum(array.nbytes for array in held)


def test_the_memory_foretold_is_the_memory_taken() -> None:
    states = Store()
    rows = np.arange(4000, dtype=np.uint64).reshape(-1, 1)
    insert(states, rows[:100])
    foretold = states.nbytes_with(3900)
    assert foretold > states.nbytes == states.nbytes_with(1)
    insert(states, rows)
    assert states.nbytes == foretold


def test_more_states_than_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_STATES", 1500)
    states = Store()
    rows = np.arange(1501, dtype=np.uint64).reshape(-1, 1)
    insert(states, rows[:1500])
    insert(states, rows[:1500])
    assert len(states) == 1500
    with pytest.raises(OverflowError, match=r"more than 1,500 states.*narrow the scope"):
        insert(states, rows)


def test_the_collision_probability_counts_pairs_of_states() -> None:
    states = Store()
    assert states.collision_probability == 0
    insert(states, np.arange(1000, dtype=np.uint64).reshape(-1, 1))
    assert states.collision_probability == pytest.approx(1000 * 999 / 2 / 2**64)


@pytest.mark.parametrize("size", [1, 3, 1000, 2**31 + 1])
def test_fast_range_spreads_words_evenly_and_in_order(size: int) -> None:
    @jit.kernel
    def scale(word: np.uint64, size: int) -> int:
        return jit.fast_range(word, size)

    words = [0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    assert [scale(np.uint64(word), size) for word in words] == [word * size >> 64 for word in words]


def test_an_edit_of_what_kernels_import_or_of_a_setting_gives_another_cache_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = {
        "model/queues.py": "from kvproof.model.parts import deep\n\n@kernel\ndef f(): ...\n",
        "model/parts/deep.py": "from kvproof.spec.verdicts import BROKEN\n",
        "spec/verdicts.py": "BROKEN = 2\n",
        "search/store.py": "double = kernel(twice)\n",
    }
    other = {
        "cli/main.py": "from kvproof.model import queues\n",
        "spec/findings.py": "",
        "model/__init__.py": "",
    }
    for name, text in (compiled | other).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keys = {jit.source_key(tmp_path)}
    for name in compiled:
        path = tmp_path / name
        path.write_text(path.read_text() + "LIMIT = 1\n")
        key = jit.source_key(tmp_path)
        assert key not in keys, name
        keys.add(key)
    for name in other:
        (tmp_path / name).write_text("LIMIT = 1\n")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "elsewhere")
    assert jit.source_key(tmp_path) == key
    checked = os.environ.get("NUMBA_BOUNDSCHECK") == "1"
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "0" if checked else "1")
    assert jit.source_key(tmp_path) not in keys


def test_old_cache_folders_are_removed_and_others_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for age in range(10):
        folder = jit.use_cache_folder(tmp_path, f"{age}")
        assert folder is not None
        os.utime(folder, (1000 + age, 1000 + age))
    assert jit.use_cache_folder(tmp_path, "7") == tmp_path / "kernels-7"
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["kernels-5", "kernels-6", "kernels-7", "kernels-8", "kernels-9", "other"]


def test_without_a_place_for_the_cache_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert jit.use_cache_folder(tmp_path / "file", "0") is None


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_a_kernel_is_compiled_once_and_then_read_from_the_keyed_folder(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from kvproof.native.jit import compiling, kernel\n"
        "@kernel\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "with compiling(lambda told: print(told.split(' (')[0])):\n"
        "    print(double(2), double(2.5))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> str:
        return subprocess.run(
            [sys.executable, script], env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert run() == "compiling\n4 5.0\n"
    assert run() == "4 5.0\n"
    assert list((tmp_path / "cache").glob(f"kernels-{jit.source_key()}/*/*.nbi"))


DOUBLE = """
from kvproof.native.jit import compiling, kernel
@kernel
def double(x):
    return 2 * x
with compiling(print):
    print(double(2))
"""


def kernel_of_script(folder: Path, text: str, **settings: str) -> str:
    """What a script with a kernel prints, its cache in `folder`/cache."""
    script = folder / "script.py"
    script.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, script],
        env=environment | settings,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"half", None], ids=["empty", "foreign", "cut"])
def test_a_damaged_cache_is_said_and_made_anew(
    tmp_path: Path, suffix: str, content: bytes | None
) -> None:
    assert "kept for the next time" in kernel_of_script(tmp_path, DOUBLE)
    (file,) = (tmp_path / "cache").glob(f"kernels-*/*/*{suffix}")
    file.write_bytes(file.read_bytes()[:-9] if content is None else content)
    assert "is damaged: compiling anew" in kernel_of_script(tmp_path, DOUBLE)
    assert kernel_of_script(tmp_path, DOUBLE) == "4\n"


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_a_cache_that_cannot_be_written_is_said_and_not_needed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from kvproof.native.jit import compiling, kernel\n"
        "double = kernel(lambda x: 2 * x)\n"
        "with compiling(print):\n"
        "    print(double(2))\n"
    )
    (tmp_path / "file").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "file")}
    done = subprocess.run(
        [sys.executable, script], env=environment, check=True, capture_output=True, text=True
    )
    assert "cannot be written: nothing is kept" in done.stdout
    assert done.stdout.endswith("4\n")


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_code_is_kept_in_the_keyed_folder_or_nowhere(tmp_path: Path) -> None:
    kernel_of_script(tmp_path, DOUBLE)
    (kept,) = (tmp_path / "cache").glob("kernels-*/*")
    shutil.rmtree(kept)
    kept.touch()
    promised, result, taken_back = kernel_of_script(tmp_path, DOUBLE).splitlines()
    assert "kept for the next time" in promised
    assert result == "4"
    assert f"{kept.parent} cannot be written: nothing is kept" in taken_back
    assert not list(tmp_path.glob("__pycache__/*.nb?"))


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
@pytest.mark.skipif(os.geteuid() != 0, reason="rights are dropped in a way that only root has")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="rights are dropped with setpriv")
def test_a_cache_that_can_only_be_read_is_read(tmp_path: Path) -> None:
    kernel_of_script(tmp_path, DOUBLE)
    folders = [path for path in (tmp_path / "cache").rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", sys.executable]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> str:
        return subprocess.run(
            [*command, str(tmp_path / "script.py")],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert run() == "4\n"
    for file in (tmp_path / "cache").rglob("*.nbi"):
        file.unlink()
    told, result = run().splitlines()
    assert "cannot be written: nothing is kept" in told
    assert result == "4"


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_a_user_without_a_home_needs_no_cache(tmp_path: Path) -> None:
    homeless = """
import pathlib
def home():
    raise RuntimeError("Could not determine home directory.")
pathlib.Path.home = home
"""
    told, result = kernel_of_script(
        tmp_path, homeless + DOUBLE, NUMBA_CACHE_DIR="", XDG_CACHE_HOME=""
    ).splitlines()
    assert "nothing is kept without a home folder" in told
    assert result == "4"


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_code_that_could_not_be_kept_after_all_is_said_at_the_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import errno\n"
        "from numba.core.caching import IndexDataCacheFile\n"
        "from kvproof.native.jit import compiling, kernel\n"
        "def full(*_):\n"
        "    raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "IndexDataCacheFile.save = full\n"
        "@kernel\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "with compiling(print):\n"
        "    print(double(2))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, script], env=environment, check=True, capture_output=True, text=True
    )
    promised, result, taken_back = done.stdout.splitlines()
    assert "kept for the next time" in promised
    assert result == "4"
    assert "cannot be written: nothing is kept" in taken_back


REPORTLIKE = Schema(
    "test of clearing",
    np.int32,
    (
        Field("total", (), "..", "", lasts=True),
        Field("number", (), "..", ""),
        Field("table", ("A", "B"), "..", ""),
        Field("kept", ("A",), "..", "", lasts=True),
        Field("line", ("B",), "..", ""),
    ),
)


@jit.kernel
def cleared(record):  # type: ignore[no-untyped-def]
    clear(record)


@pytest.mark.parametrize("clearing", [clear, cleared], ids=["plain", "compiled"])
def test_a_cleared_record_keeps_the_fields_that_last(clearing: Any) -> None:
    record = REPORTLIKE.layout({"A": 3, "B": 5}).new()
    record.cells[:] = 7
    clearing(record)
    assert record.total == 7
    assert record.kept.tolist() == [7, 7, 7]
    assert record.number == 0
    assert not record.table.any()
    assert not record.line.any()
