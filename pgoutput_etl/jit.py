"""The one place that knows numba: functions compiled when they are first called, and kept on disk for the next process.

    from pgoutput_etl import compiled

    @compiled.compiled
    def sum_of(values: NDArray[np.int64]) -> int: ...

    if compiled.AVAILABLE:
        sum_of(values)

Numba takes more than half a second to import, which happens when AVAILABLE is asked for or a kernel is called for the
first time: a module of kernels costs nothing to import. A kernel may call others, by names of its module's own, and
use numbers and small arrays of its module as constants. Machine code is kept in the folder that NUMBA_CACHE_DIR names,
else beside the package, else in the user's cache; where none of them can be written, as from a zip without a home,
each process compiles for itself. It is kept under a hash of all that it was made from, so that it is never stale.

PGOUTPUT_ETL_PURE=1 in the environment switches kernels off.
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


AVAILABLE: bool  # whether kernels can be called

WHY_NOT: str | None  # in words for the user, where they can't


P = ParamSpec("P")

R = TypeVar("R")


# _nrt: arrays that are handed from kernel to kernel are not counted, which would cost more than what most of them do.
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
    except Exception as error:  # noqa: BLE001 - it may be there and not fit the numpy that is there
        return None, f"numba can't be imported ({error})"
    if numba.config.DISABLE_JIT:
        return None, "NUMBA_DISABLE_JIT is set"
    if sys.byteorder != "little":
        return None, "this processor is big-endian"
    return numba, None


class Kernel(Generic[P, R]):
    """A function that is compiled when it is first called, for the types that it is called with.

    Without the interpreter's lock, without a check of indices, integers that wrap around. It can't make an array.
    RuntimeError where kernels are not available.
    """

    __slots__ = ("__name__", "_dispatcher", "function", "is_inlined")

    def __init__(self, function: Callable[P, R], is_inlined: bool = False) -> None:
        self.function = function
        self.is_inlined = is_inlined
        self.__name__: str = getattr(function, "__name__", "kernel")
        self._dispatcher: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        found: R = (self._dispatcher or self.dispatcher())(*args, **kwargs)
        return found

    def dispatcher(self) -> Any:
        with _lock:
            if self._dispatcher is None:
                self._dispatcher = self._made()
            return self._dispatcher

    def _made(self) -> Any:
        numba, why_not = _numba()
        if numba is None:
            raise RuntimeError(f"{self.__name__} can't be compiled: {why_not}")
        of = self.function
        assert isinstance(of, FunctionType)
        called = {name: other.dispatcher() for name, other in self._constants().items() if isinstance(other, Kernel)}
        resolved = FunctionType(of.__code__, {**of.__globals__, **called}, of.__name__, of.__defaults__)
        resolved.__qualname__ = of.__qualname__
        dispatcher = numba.njit(**_OPTIONS, forceinline=self.is_inlined)(resolved)
        dispatcher._cache = _KeptCode(numba, f"{of.__module__}.{of.__qualname__}", self.made_from())
        return dispatcher

    def _constants(self) -> dict[str, Any]:
        of = self.function
        assert isinstance(of, FunctionType)
        return {name: of.__globals__[name] for name in of.__code__.co_names if name in of.__globals__}

    def made_from(self) -> bytes:
        """A hash of its code, of the kernels that it calls, and of its constants."""
        code = self.function.__code__
        parts = [
            code.co_code,
            repr((_OPTIONS, self.is_inlined)).encode(),
            repr((code.co_consts, code.co_names, code.co_varnames)).encode(),
        ]
        for name, value in sorted(self._constants().items()):
            parts += [name.encode(), _bytes_of(value)]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _bytes_of(constant: Any) -> bytes:
    if isinstance(constant, Kernel):
        return constant.made_from()
    if isinstance(constant, ModuleType):
        return constant.__name__.encode()
    if not isinstance(constant, type) and hasattr(constant, "tobytes") and hasattr(constant, "dtype"):
        return repr((constant.dtype, constant.shape)).encode() + bytes(constant.tobytes())
    return repr(constant).encode()


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    return Kernel(function)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """A kernel that others call for each value: no call is left of it in their code."""
    return Kernel(function, True)


class _Instruction(Kernel[P, R]):
    """What numba has no word for; `function` makes it."""

    __slots__ = ()

    def _made(self) -> Any:
        numba, why_not = _numba()
        if numba is None:
            raise RuntimeError(f"{self.__name__} can't be compiled: {why_not}")
        make: Any = self.function
        return make(numba)

    def made_from(self) -> bytes:
        return self.__name__.encode()


def _load_word(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(_place(context, builder, signature, arguments), align=1)

        return numba.types.uint64(data, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _store_word(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[2], _place(context, builder, signature, arguments), align=1)
            return context.get_dummy_value()

        return numba.types.void(data, numba.types.uint64, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _load_length(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            sent = builder.load(_place(context, builder, signature, arguments, ir.IntType(32)), align=1)
            return builder.zext(builder.bswap(sent), ir.IntType(64))

        return numba.types.uint64(data, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _no_text_in_block(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            block = ir.VectorType(ir.IntType(8), 64)
            found = builder.load(_place(context, builder, signature, arguments, block), align=1)
            # as signed numbers, bytes past 127 are below 0
            return builder.bitcast(builder.icmp_signed("<", found, ir.Constant(block, [1] * 64)), ir.IntType(64))

        return numba.types.uint64(data, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _copy_block(numba: Any) -> Any:
    def typed(_typing_context: Any, data: Any, _at: Any, out: Any, _to: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            block = ir.VectorType(ir.IntType(8), 32)
            found = builder.load(_place(context, builder, signature, arguments, block), align=1)
            builder.store(found, _place(context, builder, signature, arguments, block, 2), align=1)
            mask = builder.bitcast(builder.icmp_signed("<", found, ir.Constant(block, [0] * 32)), ir.IntType(32))
            return builder.zext(mask, ir.IntType(64))

        return numba.types.uint64(data, numba.types.uint64, out, numba.types.uint64), generate

    return numba.extending.intrinsic(typed)


def _place(context: Any, builder: Any, signature: Any, arguments: Any, of: Any = None, first: int = 0) -> Any:
    from llvmlite import ir

    array = context.make_array(signature.args[first])(context, builder, arguments[first])
    return builder.bitcast(builder.gep(array.data, [arguments[first + 1]]), (of or ir.IntType(64)).as_pointer())


# In all of these `data` and `out` are arrays of bytes, and nothing looks whether what is read and written is within.
# Eight bytes as a number, the first of them the lowest: load_word(data, at), and store_word(data, at, word).
load_word: Any = _Instruction(_load_word)

store_word: Any = _Instruction(_store_word)

# Four bytes as a number, the first of them the highest: load_length(data, at).
load_length: Any = _Instruction(_load_length)

# no_text_in_block(data, at): of the 64 bytes there a bit each, the first one's the lowest: 1 if it is NUL or past 127.
no_text_in_block: Any = _Instruction(_no_text_in_block)

# copy_block(data, at, out, to): copies 32 bytes; of each a bit, the first one's the lowest: 1 if it is past 127.
copy_block: Any = _Instruction(_copy_block)


class _KeptCode:
    """What numba asks for compiled code and gives it to. Whatever goes wrong with a file, the code is made anew."""

    def __init__(self, numba: ModuleType, name: str, made_from: bytes) -> None:
        self._numba = numba
        self._name = name
        self._made_from = made_from

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
                if _is_written(folder, self._file(signature, result.target_context), content):
                    return

    def _file(self, signature: Any, target_context: Any) -> str:
        """Numba's names of the processor and of types say all that the code depends on beside what it is made from."""
        machine = target_context.codegen().magic_tuple()
        key = repr((self._made_from, self._numba.__version__, str(signature), machine)).encode()
        return f"{self._name}-{hashlib.sha256(key).hexdigest()[:32]}.{sys.implementation.cache_tag}.nbc"

    def flush(self) -> None:
        """Numba's word for: compile it anew. Nothing that is kept is stale."""

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


def _is_written(folder: Path, name: str, content: bytes) -> bool:
    """In one go, as other processes may read or write the same."""
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


np: Any = numpy  # its stubs know nothing of numba's scalars


PADDING = 32  # bytes: as many as are copied at once

_BLOCK = np.uint64(PADDING)

_BLOCK_BITS = np.uint64(0xFFFFFFFF)

_HIGH_BIT = np.uint64(0x80)

_0, _1 = np.uint64(0), np.uint64(1)


@inlined
def copied(data: Any, begin: Any, end: Any, out: Any, to: Any) -> Any:
    """Copies data[begin:end] to out[to:], which has room for PADDING bytes more; 0 if all of them are ASCII.

    All places are uint64. What is behind the copy is overwritten; so copies are made in order.
    """
    past_ascii = _0
    room = data.shape[0] - PADDING
    if room >= 0:
        while end - begin > _BLOCK and begin <= np.uint64(room):
            past_ascii |= copy_block(data, begin, out, to)
            begin += _BLOCK
            to += _BLOCK
        if begin <= np.uint64(room):
            return past_ascii | copy_block(data, begin, out, to) & (_BLOCK_BITS >> (_BLOCK - (end - begin)))
    while begin < end:
        past_ascii |= np.uint64(data[begin]) & _HIGH_BIT
        out[to] = data[begin]
        begin += _1
        to += _1
    return past_ascii
