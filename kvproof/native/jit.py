"""Compiled kernels: one decorator, a cache that cannot be stale, and two machine instructions.

Import this module before any module with kernels: numba fixes a function's cache folder when it is
decorated. With `NUMBA_DISABLE_JIT=1` every kernel is the plain Python function it was written as.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

_ROOT = Path(__file__).resolve().parent.parent
_HAS_KERNELS = re.compile(r"^\s*@kernel\b|\bkernel\(|^\s*(?:from|import) numba\b", re.MULTILINE)
_IMPORT = re.compile(r"^\s*from\s+kvproof\.([\w.]+)\s+import\s+(\([^)]*\)|.*)", re.MULTILINE)
_NAME = re.compile(r"\w+")
_FOLDERS_KEPT = 5
_DIGEST = 32


def sources(root: Path = _ROOT) -> list[Path]:
    """The modules with kernels and all that they import, one from another, in order.

    `root` is the package's folder. A package's `__init__` has nothing that a kernel could use.
    """
    texts: dict[tuple[str, ...], str] = {}
    for folder, _folders, names in os.walk(root, followlinks=True):
        for name in names:
            if name.endswith(".py") and name != "__init__.py":
                path = Path(folder, name)
                module = path.relative_to(root).with_suffix("").parts
                texts[module] = path.read_text(encoding="utf-8")
    todo = [module for module, text in texts.items() if has_kernels(text)]
    found = set()
    while todo:
        module = todo.pop()
        if module in texts and module not in found:
            found.add(module)
            todo += _imports(texts[module])
    return sorted(root.joinpath(*module).with_suffix(".py") for module in found)


def has_kernels(text: str) -> bool:
    """Whether a module's source has kernels, or makes what they are made of."""
    return bool(_HAS_KERNELS.search(text))


def _imports(text: str) -> Iterator[tuple[str, ...]]:
    """What a module may import of the package; each may be a module, or a name in one."""
    for module, imported in _IMPORT.findall(text):
        parts = tuple(module.split("."))
        yield parts
        for name in _NAME.findall(imported):
            yield (*parts, name)


def source_key(root: Path = _ROOT) -> str:
    """A digest of everything compiled code may depend on: the sources and numba's settings.

    Numba looks only at the file of the function itself, so that a kernel would outlive an edit of
    a function or constant that it uses from another module.
    """
    digest = hashlib.sha256()
    for path in sources(root):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    for name in sorted(os.environ):
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR":
            digest.update(f"{name}={os.environ[name]}\0".encode())
    return digest.hexdigest()[:16]


def use_cache_folder(base: Path, key: str) -> Path | None:
    """Make `base`/kernels-`key` and remove all but the newest few; None if it cannot be made.

    One that is there can be read, even where it cannot be written.
    """
    folder = base / f"kernels-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return folder if os.access(folder, os.R_OK | os.X_OK) and folder.is_dir() else None
    with contextlib.suppress(OSError):  # another process may be removing the same folders
        folders = sorted(base.glob("kernels-*"), key=lambda path: path.stat().st_mtime)
        for old in folders[:-_FOLDERS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def cache_base() -> Path | None:
    """Where folders of caches are; None for a user who has no home."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvproof"
    except RuntimeError:
        return None


_base = cache_base()
_folder = None if _base is None else use_cache_folder(_base, source_key())
if _folder is not None:
    # Not through the environment: a child process would append its key to ours.
    numba.config.CACHE_DIR = str(_folder)  # type: ignore[attr-defined]


class _CheckedFile(IndexDataCacheFile):
    """A function's code on disk, with a digest: what is damaged is not there, and is made anew."""

    damaged = False
    unkept = False

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except OSError:
            return {}
        except Exception:
            # Whatever a damaged pickle raises.
            _CheckedFile.damaged = True
            return {}

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        digest, data = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(data).digest() != digest:
            _CheckedFile.damaged = True
            raise OSError(f"{name} is damaged")
        return pickle.loads(data)

    def _save_data(self, name: str, data: Any) -> None:
        dumped = self._dump(data)
        with self._open_for_write(self._data_path(name)) as stream:
            stream.write(hashlib.sha256(dumped).digest() + dumped)

    def save(self, key: Any, data: Any) -> None:
        try:
            super().save(key, data)
        except OSError:
            # No room, say: the code is there all the same, for this process.
            _CheckedFile.unkept = True


_Locator: Any = CompileResultCacheImpl._locator_classes[0]


class _KeyedFolder(_Locator):  # type: ignore[misc]
    """A place in the chosen folder; others, which numba would try next, have no key."""

    def ensure_cache_path(self) -> None:
        # What cannot be written may be read all the same; writing has an error of its own.
        with contextlib.suppress(OSError):
            super().ensure_cache_path()


class _KeyedCode(CompileResultCacheImpl):
    _locator_classes = [_KeyedFolder]  # noqa: RUF012 (as in the base class)


class _KeyedCache(FunctionCache):
    _impl_class = _KeyedCode

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file.__class__ = _CheckedFile


def kernel(function: Function) -> Function:
    """Compile `function` on its first call and keep the code on disk for the next process."""
    dispatcher: Any = numba.njit(nogil=True)(function)
    if _folder is not None and dispatcher is not function:
        dispatcher._cache = _KeyedCache(function)
    return cast(Function, dispatcher)


_UNKEPT = (
    "nothing is kept without a home folder"
    if _base is None
    else f"{_folder or _base} cannot be written: nothing is kept"
)


def _can_keep() -> bool:
    return _folder is not None and os.access(_folder, os.W_OK) and not _CheckedFile.unkept


def _compilation() -> str:
    """What is being done while code is compiled, and whether it is kept."""
    if not _can_keep():
        return f"compiling (a minute or so; {_UNKEPT})..."
    if _CheckedFile.damaged:
        return f"{_folder} is damaged: compiling anew (a minute or so)..."
    return "compiling (a minute or so, kept for the next time)..."


class _FirstCompilation(event.Listener):
    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify: Callable[[str], None] | None = notify
        self.promised = False

    def on_start(self, _event: Any) -> None:
        if self._notify is not None:
            notify, self._notify = self._notify, None
            self.promised = _can_keep()
            notify(_compilation())

    def on_end(self, _event: Any) -> None:
        pass


@contextlib.contextmanager
def compiling(notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` once, when the first kernel within the block turns out not to be on disk.

    Compilation takes up to a minute; a user should be told why nothing moves, in the words that
    `notify` is given. Where it turns out that the code could not be kept, that is said at the end.
    """
    listener = _FirstCompilation(notify)
    try:
        with event.install_listener("numba:compile", listener):
            yield
    finally:
        if listener.promised and _CheckedFile.unkept:
            notify(_UNKEPT)


def prefetch(array: NDArray[Any], index: int) -> None:
    """Begin to fetch the cache line of `array[index]` (one dimension); has no other effect."""


@intrinsic
def _prefetch_line(_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        line = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        flag = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [line.type, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        read, keep, data_cache = 0, 3, 1
        builder.call(function, [line, flag(read), flag(keep), flag(data_cache)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@overload(prefetch)
def _prefetch_overload(array: Any, index: Any) -> Any:
    def compiled(array: Any, index: Any) -> Any:
        return _prefetch_line(array, index)  # type: ignore[call-arg]

    return compiled


def fast_range(word: np.uint64, size: int) -> int:
    """`word` (uint64) scaled from [0, 2**64) down to [0, `size`), in order: word * size >> 64."""
    return (int(word) * int(size)) >> 64


@intrinsic
def _multiply_high(_context: Any, word: Any, size: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.int64(types.uint64, types.int64), codegen


@overload(fast_range)
def _fast_range_overload(word: Any, size: Any) -> Any:
    def compiled(word: Any, size: Any) -> Any:
        return _multiply_high(word, size)  # type: ignore[call-arg]

    return compiled
