"""The wheel: one import name, and it works where no checkout is, beside a user's own `model/`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

NEEDS_NO_CHECKOUT = (
    "--version",
    "scopes",
    "rules",
    "invariants",
    "findings",
    "scope",
    "check two-equal",
)
NEEDS_A_CHECKOUT = ("matrix", "counterexamples", "docs", "simulate page")


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy, for building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    not_copied = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=not_copied)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder)
    built = run(*pip, folder / "source", cwd=folder)
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("kvproof-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the installed package, to be put on the path, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder)
    done = run(*pip, wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A user's folder, with modules of our folders' names that must not be imported."""
    for name in ("model", "spec"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(77)", encoding="utf-8")
    return tmp_path


def test_the_wheel_has_one_import_name_and_all_rooms(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"kvproof"}
    sources = {
        str(Path(folder, name).relative_to(ROOT))
        for folder, _folders, files in os.walk(ROOT / "kvproof", followlinks=True)
        for name in files
        if name.endswith((".py", ".sq", "py.typed"))
    }
    assert sources <= names


def test_commands_work_beside_a_users_own_model_and_spec(installed: Path, away: Path) -> None:
    settings = {"PYTHONPATH": str(installed), "NUMBA_DISABLE_JIT": "1"}
    where = run(
        *(sys.executable, "-c", "import kvproof; print(kvproof.__file__, kvproof.load_scope)"),
        cwd=away,
        **settings,
    )
    assert where.stdout.startswith(str(installed)), where.stderr
    for command in NEEDS_NO_CHECKOUT:
        done = run(sys.executable, "-m", "kvproof", *command.split(), cwd=away, **settings)
        assert (command, done.returncode) == (command, 0), done.stderr
        assert done.stdout
    for command in NEEDS_A_CHECKOUT:
        done = run(sys.executable, "-m", "kvproof", *command.split(), cwd=away, **settings)
        assert (command, done.returncode) == (command, 2), done.stdout
        assert "in a checkout of the project" in " ".join(done.stderr.split())
    assert sorted(path.name for path in away.iterdir()) == ["model", "spec"]
