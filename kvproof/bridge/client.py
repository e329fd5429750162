"""kvproof's side of the driver: starts it in vLLM's interpreter and exchanges batches with it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import kvproof
from kvproof.bridge import environment
from kvproof.errors import KvproofError
from kvproof.vllm import protocol

_PACKAGE = Path(kvproof.__file__).resolve().parent
_ERROR_LINES = 15
_SILENCE = 30.0

Came = TypeVar("Came")

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
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        # Answers are read as they come: a driver that waits for room in the pipe would not read
        # the next batch.
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()
        self._greeted = False
        self._guards: frozenset[str] = frozenset()
        self._unseen: tuple[str, ...] = ()
        self._waiting = 0

    @property
    def guards(self) -> frozenset[str]:
        """The rules whose guards the driver can take out of the real classes."""
        self._greet()
        return self._guards

    @property
    def unseen(self) -> tuple[str, ...]:
        """What is compared on the reference and cannot be observed on this release.

        Known when the first answers have come; a Ctrl-C before them does not wait for it.
        """
        return self._unseen

    def submit(self, batch: list[list[Any]]) -> None:
        """Send a batch of operations."""
        self._waiting += 1
        try:
            self._send(protocol.frame(batch))
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
            try:
                body = self._answers.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                raise KeyboardInterrupt from None
            if body is None:
                self._answers.put(None)
                raise self._died()
            if self._greeted:
                self._waiting -= 1
            else:
                self._take_greeting(protocol.decode(body))

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
        if not self._greeted:
            self._take_greeting(self._receive())

    def _take_greeting(self, greeting: Any) -> None:
        version, guards, unseen = greeting
        if version.partition("+")[0] != self.version.partition("+")[0]:
            raise DriverError(
                f"wanted vLLM {self.version}, but {self._python} has {version}: give "
                f"--version {version}, or unset or change {environment.PYTHON_VARIABLE}"
            )
        self._guards = frozenset(guards)
        self._unseen = tuple(unseen)
        self._greeted = True

    def _receive(self) -> Any:
        body = self._await(self._next_answer)
        if body is None:
            self._answers.put(None)
            raise self._died()
        return protocol.decode(body)

    def _next_answer(self) -> bytes | None:
        return self._answers.get(timeout=_SILENCE)

    def _send(self, frame: bytes) -> None:
        """Write a frame whole, as the driver takes it."""
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)

        def take_some() -> int:
            if not poll.poll(1000 * _SILENCE):
                raise queue.Empty
            with contextlib.suppress(BlockingIOError):
                return os.write(descriptor, left)
            return 0

        left = memoryview(frame)
        while left:
            left = left[self._await(take_some) :]

    def _await(self, come: Callable[[], Came]) -> Came:
        """What comes of `come`; says so each time that it is queue.Empty after _SILENCE."""
        waited = 0.0
        while True:
            try:
                return come()
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
