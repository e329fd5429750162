"""kvproof's side of the driver: starts it in vLLM's interpreter and exchanges batches with it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import kvproof
from kvproof.bridge import environment
from kvproof.errors import KvproofError
from kvproof.vllm import protocol

_PACKAGE = Path(kvproof.__file__).resolve().parent
_ERROR_LINES = 15
_SILENCE = 30.0

# Only our package becomes importable there, not what stands beside it, and not the current folder.
_START = """
import importlib.util, runpy, sys
folder, module, *arguments = sys.argv[1:]
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.spec_from_file_location(
    "kvproof", folder + "/__init__.py", submodule_search_locations=[folder]
)
sys.modules["kvproof"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__")
"""
_SETTINGS = {
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
}


class DriverError(KvproofError, RuntimeError):
    """The driver is not there, is not the wanted release, or died; carries its last words."""


class Client:
    """A driver process of one vLLM release, `version`; a context manager.

    `module` is what runs in it, if not the driver.

    `submit` sends a batch without waiting and `collect` takes the answers to the oldest one that
    is out, so that both processes can work at the same time. Batches and answers are described
    in kvproof/vllm/protocol.py.
    """

    def __init__(
        self,
        version: str = environment.DEFAULT_VERSION,
        module: str = "kvproof.vllm.driver",
    ) -> None:
        python = environment.find(version)
        if python is None:
            raise environment.MissingEnvironment(
                f"vLLM {version} has no environment here: {environment.how_to_get(version)}"
            )
        self.version = version
        self._python = python
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() does)
        answers, answers_of_driver = os.pipe()
        try:
            self._process = subprocess.Popen(
                [str(python), "-c", _START, str(_PACKAGE), module, str(answers_of_driver)],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(answers_of_driver,),
                # A Ctrl-C is for us alone, who end the driver.
                start_new_session=True,
                env={**os.environ, **_SETTINGS},
            )
        finally:
            os.close(answers_of_driver)
        # Answers are read as they come: a driver that waits for room in the pipe would not read
        # the next batch.
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()
        self._greeted = False
        self._guards: frozenset[str] = frozenset()
        self._waiting = 0

    @property
    def guards(self) -> frozenset[str]:
        """The rules whose guards the driver can take out of the real classes."""
        self._greet()
        return self._guards

    def submit(self, batch: list[list[Any]]) -> None:
        """Send a batch of operations."""
        assert self._process.stdin is not None
        self._waiting += 1
        try:
            protocol.write_frame(self._process.stdin, batch)  # type: ignore[arg-type]
        except OSError:
            raise self._died() from None

    def collect(self) -> list[Any]:
        """The answers to the oldest batch that is out, one for each operation."""
        if not self._waiting:
            raise ValueError("collect: no batch is out; submit one first")
        self._greet()
        answers: list[Any] = self._receive()
        self._waiting -= 1
        return answers

    def run(self, batch: list[list[Any]]) -> list[Any]:
        """Send a batch and wait for its answers; no other batch may be out."""
        if self._waiting:
            raise ValueError(f"run: {self._waiting} batches are out; collect them first")
        self.submit(batch)
        return self.collect()

    def settle(self, seconds: float) -> None:
        """After a Ctrl-C: take the answers that are out; KeyboardInterrupt if they do not come."""
        until = time.monotonic() + seconds
        while self._waiting:
            self._greet()
            try:
                self._answers.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                raise KeyboardInterrupt from None
            self._waiting -= 1

    def close(self) -> None:
        """End the driver; at once if nobody has waited for its answers."""
        assert self._process.stdin is not None
        if self._waiting or not self._greeted:
            self._kill()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._reader.join()
        self._said.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # Whatever it is at, nobody waits for it.
            self._kill()
        self.close()

    def _kill(self) -> None:
        """End the driver and whatever it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self, descriptor: int) -> None:
        with open(descriptor, "rb") as stream:
            while (body := protocol.read_body(stream)) is not None:
                self._answers.put(body)
        self._answers.put(None)

    def _greet(self) -> None:
        """Take the driver's first frame, which comes before all answers."""
        if self._greeted:
            return
        version, guards = self._receive()
        if version.partition("+")[0] != self.version.partition("+")[0]:
            raise DriverError(
                f"wanted vLLM {self.version}, but {self._python} has {version}: give "
                f"--version {version}, or unset or change {environment.PYTHON_VARIABLE}"
            )
        self._guards = frozenset(guards)
        self._greeted = True

    def _receive(self) -> Any:
        body = self._await()
        if body is None:
            self._answers.put(None)
            raise self._died()
        return protocol.decode(body)

    def _await(self) -> bytes | None:
        """The next answer; says so while none comes."""
        waited = 0.0
        while True:
            try:
                return self._answers.get(timeout=_SILENCE)
            except queue.Empty:
                waited += _SILENCE
                print(f"vLLM's driver has been silent for {waited:.0f} s", file=sys.stderr)

    def _died(self) -> DriverError:
        self._waiting = 0
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()[-_ERROR_LINES:]
        said = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        made_for = environment.DEFAULT_VERSION
        if self._greeted or self.version == made_for:
            return DriverError(f"vLLM's driver ended with {code}; it said last:\n{said}")
        return DriverError(
            f"vLLM's driver, which is made for {made_for}, does not start on {self.version}; "
            f"it said last:\n{said}"
        )
