"""Compiles kernels with numba on their first call, and caches the machine code on disk. Only this module uses numba.

    from pgoutput_etl import jit

    @jit.compiled
    def sum_of(values: NDArray[np.int64]) -> int: ...

    if jit.AVAILABLE:
        sum_of(values)

Importing numba takes more than half a second. It is imported when AVAILABLE is first read or a kernel is first called,
so importing a module of kernels costs nothing. A kernel may call other kernels by their global names in its module, and
use the module's numbers and small arrays as constants. Machine code is cached in the folder that NUMBA_CACHE_DIR names,
otherwise beside the package, otherwise in the user's cache folder. If none is writable (a zip without a home
directory), each process compiles for itself. The file name has a hash of everything that the code depends on, so it is
never stale.

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
from functools import cache, wraps
from pathlib import Path
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy

from pgoutput_etl.cache_folders import cache_folders

PURE_VARIABLE = "PGOUTPUT_ETL_PURE"

AVAILABLE: bool  # True if kernels can be called

WHY_NOT: str | None  # why kernels are not available, for the user

P = ParamSpec("P")

R = TypeVar("R")

# _nrt=False: no reference counting of arrays passed between kernels, which would cost more than most kernels do.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}

_CHECKSUM = hashlib.sha256().digest_size

_lock = RLock()


def __getattr__(name: str) -> bool | str | None:
    if name == "AVAILABLE":
        return _numba()[0] is not None
    if name == "WHY_NOT":
        return _numba()[1]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _numba() -> tuple[ModuleType | None, str | None]:
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

    It runs without the interpreter's lock and without bounds checks, and its integers wrap around. It can't create
    arrays. Raises RuntimeError if kernels are not available.
    """

    __slots__ = ("__name__", "_dispatcher", "function", "is_inlined")

    def __init__(self, function: Callable[P, R], is_inlined: bool = False) -> None:
        assert isinstance(function, FunctionType)
        self.function = function
        self.is_inlined = is_inlined
        self.__name__ = function.__name__
        self._dispatcher: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = (self._dispatcher or self.dispatcher())(*args, **kwargs)
        return result

    def dispatcher(self) -> Any:
        with _lock:
            if self._dispatcher is None:
                self._dispatcher = self._compile()
            return self._dispatcher

    def _numba(self) -> Any:
        numba, why_not = _numba()
        if numba is None:
            raise RuntimeError(f"{self.__name__} can't be compiled: {why_not}")
        return numba

    def _compile(self) -> Any:
        numba, function = self._numba(), self.function
        callees = {name: value.dispatcher() for name, value in self._globals().items() if isinstance(value, Kernel)}
        namespace = {**function.__globals__, **callees}
        resolved = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
        resolved.__qualname__ = function.__qualname__
        dispatcher = numba.njit(**_OPTIONS, forceinline=self.is_inlined)(resolved)
        dispatcher._cache = _CodeCache(numba, f"{function.__module__}.{function.__qualname__}", self.fingerprint())
        return dispatcher

    def _globals(self) -> dict[str, Any]:
        """The globals that the function uses."""
        used = self.function.__globals__
        return {name: used[name] for name in self.function.__code__.co_names if name in used}

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


class _Instruction(Kernel[..., Any]):
    """An operation on byte arrays that numba lacks. Accesses are not checked against the arrays' bounds.

    `function` builds LLVM code. Its arguments: the builder; for each array, a function from an offset and a type (by
    default a 64-bit word) to a pointer; for each uint64, its value. The result is a uint64.
    """

    __slots__ = ()

    def _compile(self) -> Any:
        types, build = self._numba().types, self.function

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            word = ir.IntType(64)

            def operand(kind: Any, argument: Any) -> Any:
                if not isinstance(kind, types.Array):
                    return argument
                data = context.make_array(kind)(context, builder, argument).data
                return lambda offset, to=word: builder.bitcast(builder.gep(data, [offset]), to.as_pointer())

            return build(builder, *map(operand, signature.args, arguments))

        @wraps(build)
        def typed(_context: Any, *kinds: Any) -> Any:
            return types.uint64(*(k if isinstance(k, types.Array) else types.uint64 for k in kinds)), generate

        return self._numba().extending.intrinsic(typed)


@_Instruction
def load_word(builder: Any, data: Any, at: Any) -> Any:
    """Eight bytes as a little-endian number."""
    return builder.load(data(at), align=1)


@_Instruction
def load_length(builder: Any, data: Any, at: Any) -> Any:
    """Four bytes as a big-endian number."""
    from llvmlite import ir

    return builder.zext(builder.bswap(builder.load(data(at, ir.IntType(32)), align=1)), ir.IntType(64))


@_Instruction
def no_text_in_block(builder: Any, data: Any, at: Any) -> Any:
    """A mask for 64 bytes, lowest bit first: 1 if the byte is NUL or above 127."""
    from llvmlite import ir

    block = ir.VectorType(ir.IntType(8), 64)
    # as signed numbers, bytes above 127 are negative
    mask = builder.icmp_signed("<", builder.load(data(at, block), align=1), ir.Constant(block, [1] * 64))
    return builder.bitcast(mask, ir.IntType(64))


@_Instruction
def copy_block(builder: Any, data: Any, at: Any, out: Any, to: Any) -> Any:
    """Copies 32 bytes. Returns a mask, lowest bit first: 1 if the byte is above 127."""
    from llvmlite import ir

    block = ir.VectorType(ir.IntType(8), 32)
    loaded = builder.load(data(at, block), align=1)
    builder.store(loaded, out(to, block), align=1)
    mask = builder.bitcast(builder.icmp_signed("<", loaded, ir.Constant(block, [0] * 32)), ir.IntType(32))
    return builder.zext(mask, ir.IntType(64))


class _CodeCache:
    """Implements numba's cache of compiled code. After any error with a file, the code is compiled again."""

    def __init__(self, numba: ModuleType, name: str, fingerprint: bytes) -> None:
        self._numba = numba
        self._name = name
        self._fingerprint = fingerprint

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        for folder in cache_folders():
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
            for folder in cache_folders():
                if _write_atomically(folder, self._file(signature, result.target_context), content):
                    return

    def _file(self, signature: Any, target_context: Any) -> str:
        """The cache file's name, from everything that the code depends on: fingerprint, numba version, types, and
        processor."""
        machine = target_context.codegen().magic_tuple()
        key = repr((self._fingerprint, self._numba.__version__, str(signature), machine)).encode()
        return f"{self._name}-{hashlib.sha256(key).hexdigest()[:32]}.{sys.implementation.cache_tag}.nbc"

    def flush(self) -> None:
        """Called by numba to force recompilation. Does nothing, because cached code is never stale."""

    @property
    def cache_path(self) -> str:
        return str(cache_folders()[0])


def _write_atomically(folder: Path, name: str, content: bytes) -> bool:
    """Writes the file; False if that fails. Atomic, because other processes may read or write the same file."""
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
    """Copies data[begin:end] to out[to:], which must have room for PADDING more bytes. Returns 0 if all bytes are
    ASCII.

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
