"""Compiles kernels with numba on their first call, and caches the machine code on disk. Only this module uses numba.

    from pgoutput_etl import jit

    @jit.compiled
    def sum_of(values: NDArray[np.int64]) -> int: ...

    if jit.AVAILABLE:
        sum_of(values)

Importing numba takes more than half a second. It is imported when AVAILABLE is first read or a kernel is first called,
so importing a module of kernels costs nothing. A kernel may call other kernels by their global names in its module, and
use the module's numbers and small arrays as constants. Machine code is cached in the folder that NUMBA_CACHE_DIR names,
else beside the package, else in the user's cache folder. If none is writable (a zip without a home directory), each
process compiles for itself. The file name has a hash of everything that the code depends on, so it is never stale.

PGOUTPUT_ETL_PURE=1 in the environment disables kernels.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy

PURE_VARIABLE = "PGOUTPUT_ETL_PURE"

AVAILABLE: bool  # True if kernels can be called

WHY_NOT: str | None  # the reason why kernels are not available, for the user

P = ParamSpec("P")

R = TypeVar("R")

# _nrt=False: no reference counting of arrays passed between kernels, which would cost more than most kernels do.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}

_CHECKSUM = hashlib.sha256().digest_size

_lock = RLock()

_loaded: list[tuple[ModuleType | None, str | None]] = []


def __getattr__(name: str) -> bool | str | None:
    if name == "AVAILABLE":
        return _numba()[0] is not None
    if name == "WHY_NOT":
        return _numba()[1]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _numba() -> tuple[ModuleType | None, str | None]:
    with _lock:
        if not _loaded:
            _loaded.append(_import())
        return _loaded[0]


def _import() -> tuple[ModuleType | None, str | None]:
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        return None, f"{PURE_VARIABLE} is set"
    try:
        import numba
        import numba.core.compiler
        import numba.core.serialize
    except Exception as error:  # noqa: BLE001 - it may not fit the installed numpy
        return None, f"numba can't be imported ({error})"
    if numba.config.DISABLE_JIT:
        return None, "NUMBA_DISABLE_JIT is set"
    if sys.byteorder != "little":
        return None, "this processor is big-endian"
    return numba, None


class Kernel(Generic[P, R]):
    """A function that is compiled when it is first called, for the types of its arguments.

    It runs without the interpreter's lock and without bounds checks, and its integers wrap around. It can't create an
    array. Raises RuntimeError if kernels are not available.
    """

    __slots__ = ("__name__", "_dispatcher", "function", "is_inlined")

    def __init__(self, function: Callable[P, R], is_inlined: bool = False) -> None:
        self.function = function
        self.is_inlined = is_inlined
        self.__name__: str = getattr(function, "__name__", "kernel")
        self._dispatcher: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = (self._dispatcher or self.dispatcher())(*args, **kwargs)
        return result

    def dispatcher(self) -> Any:
        with _lock:
            if self._dispatcher is None:
                self._dispatcher = self._compile()
            return self._dispatcher

    def _compile(self) -> Any:
        numba, why_not = _numba()
        if numba is None:
            raise RuntimeError(f"{self.__name__} can't be compiled: {why_not}")
        function = self.function
        assert isinstance(function, FunctionType)
        callees = {name: value.dispatcher() for name, value in self._globals().items() if isinstance(value, Kernel)}
        namespace = {**function.__globals__, **callees}
        resolved = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
        resolved.__qualname__ = function.__qualname__
        dispatcher = numba.njit(**_OPTIONS, forceinline=self.is_inlined)(resolved)
        dispatcher._cache = _CodeCache(numba, f"{function.__module__}.{function.__qualname__}", self.fingerprint())
        return dispatcher

    def _globals(self) -> dict[str, Any]:
        """The globals that the function uses."""
        function = self.function
        assert isinstance(function, FunctionType)
        return {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}

    def fingerprint(self) -> bytes:
        """A hash of the function's code, of the kernels it calls, and of its constants."""
        code = self.function.__code__
        parts = [
            code.co_code,
            repr((_OPTIONS, self.is_inlined)).encode(),
            repr((code.co_consts, code.co_names, code.co_varnames)).encode(),
        ]
        for name, value in sorted(self._globals().items()):
            parts += [name.encode(), _bytes_of(value)]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _bytes_of(constant: Any) -> bytes:
    if isinstance(constant, Kernel):
        return constant.fingerprint()
    if isinstance(constant, ModuleType):
        return constant.__name__.encode()
    if not isinstance(constant, type) and hasattr(constant, "tobytes") and hasattr(constant, "dtype"):
        return repr((constant.dtype, constant.shape)).encode() + bytes(constant.tobytes())
    return repr(constant).encode()


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    return Kernel(function)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """A kernel that is inlined into the kernels that call it."""
    return Kernel(function, True)


class _Instruction(Kernel[P, R]):
    """An operation that numba lacks; `function` builds it as an intrinsic."""

    __slots__ = ()

    def _compile(self) -> Any:
        numba, why_not = _numba()
        if numba is None:
            raise RuntimeError(f"{self.__name__} can't be compiled: {why_not}")
        build: Any = self.function
        return build(numba)

    def fingerprint(self) -> bytes:
        return self.__name__.encode()


def _load_word(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(_pointer(context, builder, signature, arguments), align=1)

        return numba.types.uint64(data, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _store_word(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[2], _pointer(context, builder, signature, arguments), align=1)
            return context.get_dummy_value()

        return numba.types.void(data, numba.types.uint64, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _load_length(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            length = builder.load(_pointer(context, builder, signature, arguments, ir.IntType(32)), align=1)
            return builder.zext(builder.bswap(length), ir.IntType(64))

        return numba.types.uint64(data, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _no_text_in_block(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            block = ir.VectorType(ir.IntType(8), 64)
            loaded = builder.load(_pointer(context, builder, signature, arguments, block), align=1)
            # as signed numbers, bytes above 127 are negative
            return builder.bitcast(builder.icmp_signed("<", loaded, ir.Constant(block, [1] * 64)), ir.IntType(64))

        return numba.types.uint64(data, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _copy_block(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any, out: Any, _to: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            block = ir.VectorType(ir.IntType(8), 32)
            loaded = builder.load(_pointer(context, builder, signature, arguments, block), align=1)
            builder.store(loaded, _pointer(context, builder, signature, arguments, block, 2), align=1)
            mask = builder.bitcast(builder.icmp_signed("<", loaded, ir.Constant(block, [0] * 32)), ir.IntType(32))
            return builder.zext(mask, ir.IntType(64))

        return numba.types.uint64(data, numba.types.uint64, out, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, target: Any = None, first: int = 0) -> Any:
    """A pointer of type `target` into the array argument `first`, at the offset in the argument after it."""
    from llvmlite import ir

    array = context.make_array(signature.args[first])(context, builder, arguments[first])
    return builder.bitcast(builder.gep(array.data, [arguments[first + 1]]), (target or ir.IntType(64)).as_pointer())


# In all intrinsics, `data` and `out` are arrays of bytes, and accesses are not checked against their bounds.
# load_word(data, at), store_word(data, at, word): eight bytes as a little-endian number.
load_word: Any = _Instruction(_load_word)

store_word: Any = _Instruction(_store_word)

# load_length(data, at): four bytes as a big-endian number.
load_length: Any = _Instruction(_load_length)

# no_text_in_block(data, at): a mask of 64 bytes, the lowest bit for the first byte: 1 if it is NUL or above 127.
no_text_in_block: Any = _Instruction(_no_text_in_block)

# copy_block(data, at, out, to): copies 32 bytes; returns a mask, the lowest bit for the first byte: 1 if above 127.
copy_block: Any = _Instruction(_copy_block)


class _CodeCache:
    """Implements numba's cache of compiled code. On any error with a file, the code is compiled again."""

    def __init__(self, numba: ModuleType, name: str, fingerprint: bytes) -> None:
        self._numba = numba
        self._name = name
        self._fingerprint = fingerprint

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        for folder in _folders(self._numba):
            with suppress(Exception):
                content = (folder / self._file(signature, target_context)).read_bytes()
                checksum, data = content[:_CHECKSUM], content[_CHECKSUM:]
                if hashlib.sha256(data).digest() == checksum:
                    return self._numba.core.compiler.CompileResult._rebuild(target_context, *pickle.loads(data))
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        with suppress(Exception):
            if result.library.has_dynamic_globals:
                return
            data = self._numba.core.serialize.dumps(result._reduce())
            content = hashlib.sha256(data).digest() + data
            for folder in _folders(self._numba):
                if _write_atomically(folder, self._file(signature, result.target_context), content):
                    return

    def _file(self, signature: Any, target_context: Any) -> str:
        """The cache file's name, from all that the code depends on: fingerprint, numba version, types and processor."""
        machine = target_context.codegen().magic_tuple()
        key = repr((self._fingerprint, self._numba.__version__, str(signature), machine)).encode()
        return f"{self._name}-{hashlib.sha256(key).hexdigest()[:32]}.{sys.implementation.cache_tag}.nbc"

    def flush(self) -> None:
        """Called by numba to force recompilation; nothing to do, as cached code is never stale."""

    @property
    def cache_path(self) -> str:
        return str(_folders(self._numba)[0])


def _folders(numba: ModuleType) -> list[Path]:
    if numba.config.CACHE_DIR:
        return [Path(numba.config.CACHE_DIR) / __package__]
    folders = [Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # no home
        home = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
        folders.append((Path(home) if home else Path.home() / ".cache") / __package__)
    return folders


def _write_atomically(folder: Path, name: str, content: bytes) -> bool:
    """Write the file; False if that fails. Atomic, because other processes may read or write the same file."""
    unfinished = folder / f"{name}.{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(folder / name)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        return False
    return True


np: Any = numpy  # numpy's stubs don't cover numba's scalars

PADDING = 32  # bytes that are copied at once

_BLOCK = np.uint64(PADDING)

_BLOCK_BITS = np.uint64(0xFFFFFFFF)

_HIGH_BIT = np.uint64(0x80)

_0, _1 = np.uint64(0), np.uint64(1)


@inlined
def copy_bytes(data: Any, begin: Any, end: Any, out: Any, to: Any) -> Any:
    """Copies data[begin:end] to out[to:], which has room for PADDING bytes more; returns 0 if all are ASCII.

    All positions are uint64. Up to PADDING bytes after the copy are overwritten, so copies must be made in order.
    """
    non_ascii = _0
    room = data.shape[0] - PADDING
    if room >= 0:
        while end - begin > _BLOCK and begin <= np.uint64(room):
            non_ascii |= copy_block(data, begin, out, to)
            begin += _BLOCK
            to += _BLOCK
        if begin <= np.uint64(room):
            return non_ascii | copy_block(data, begin, out, to) & (_BLOCK_BITS >> (_BLOCK - (end - begin)))
    while begin < end:
        non_ascii |= np.uint64(data[begin]) & _HIGH_BIT
        out[to] = data[begin]
        begin += _1
        to += _1
    return non_ascii
