"""The laws of the house: what may import what, and that nothing has two names."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.native import jit

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kvproof"

ROOMS = (
    "errors",
    "shown",
    "native",
    "search",
    "model",
    "scopes",
    "spec",
    "trace",
    "checker",
    "walks",
    "proof",
    "sweep",
    "workload",
    "vllm",
    "evidence",
    "bridge",
    "simulate",
    "api",
    "cli",
)
"""Ground first: a room imports only itself and rooms before it."""

MOST_IMPORTS = 20
MOST_KERNEL_FILES = 25


def modules() -> dict[str, Path]:
    """Every module of the package by name."""
    found = {}
    for folder, _folders, names in os.walk(PACKAGE, followlinks=True):
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[str]:
    """The modules of the package that a module imports, at its top or in a function."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvproof"):
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)


def room(module: str) -> str:
    """The room of a module; the package itself has none."""
    return module.split(".")[1] if "." in module else ""


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {room(module) for module in MODULES} - {"", "__main__"}
    assert rooms == set(ROOMS)


def test_no_import_runs_upwards() -> None:
    upwards = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module)
        if room(module) in ROOMS
        and room(other) in ROOMS
        and ROOMS.index(room(other)) > ROOMS.index(room(module))
    ]
    assert not upwards


def test_no_module_imports_more_than_twenty_others() -> None:
    widest = max(MODULES, key=lambda module: len(set(imports(module))))
    assert len(set(imports(widest))) <= MOST_IMPORTS, widest


def test_what_runs_in_vllms_interpreter_imports_nothing_else_of_ours() -> None:
    for module in MODULES:
        if room(module) == "vllm":
            assert {room(other) for other in imports(module)} <= {"vllm", "workload", "errors"}, (
                module
            )


def test_modules_with_kernels_import_only_modules_with_kernels_or_names() -> None:
    kernels = {str(path.relative_to(PACKAGE)) for path in jit.sources()}
    assert len(kernels) <= MOST_KERNEL_FILES
    names_only = {"model/mends.py", "model/rules.py", "model/state.py"}
    for name in kernels - names_only:
        text = (PACKAGE / name).read_text(encoding="utf-8")
        assert jit.has_kernels(text), f"{name} is in the kernels' key and has none"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_docstring_says_what_is_in_a_module(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) or ""
    assert docstring
    if MODULES[name].name == "__init__.py" and name != "kvproof":
        assert docstring.count("\n") >= 2, "what is in the room, and what is not"


def test_no_file_can_be_loaded_under_two_names() -> None:
    by_file = defaultdict(set)
    for name, path in MODULES.items():
        by_file[path.resolve()].add(name)
    assert {file: names for file, names in by_file.items() if len(names) > 1} == {}
    for folder in ("model", "spec"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True
        )
        assert f"import it as kvproof.{folder}" in done.stderr


def test_importing_the_package_is_light() -> None:
    command = (
        "import sys, kvproof; print(sorted({'numba', 'vllm', 'numpy', 'rich', 'typer', 'z3'}"
        " & set(sys.modules)), len(dir(kvproof)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("[]")
