"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kvproof.errors import KvproofError


class FileNotWritten(KvproofError, OSError):
    """A file that could not be written; what stood there before is untouched."""


class FileKept(KvproofError, FileExistsError):
    """A file that exists and is not to be replaced."""


def keep_existing(path: Path, *, force: bool) -> None:
    """Raise FileKept for a file that is there already, unless `force`."""
    if path.exists() and not force:
        raise FileKept(f"{path} exists; give --force (force=True) to overwrite it")


def append_bytes(path: Path, content: bytes) -> None:
    """Add to the end of a file; raises FileNotWritten, which names the file and the reason."""
    try:
        with path.open("ab") as stream:
            stream.write(content)
    except OSError as error:
        raise FileNotWritten(f"{path}: {error.strerror}: what it has is kept") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by way of another one beside it, so that no half of it is ever seen.

    Raises FileNotWritten, which names the file and the reason.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        raise FileNotWritten(f"{path}: {error.strerror}: nothing was written") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
