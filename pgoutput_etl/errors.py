"""Exceptions: one class for each action that an operator has to take.

    PgoutputEtlError
    ├── ConfigError          fix the configuration or the command line      exit 2
    ├── ArchiveError         inspect the landed file that it names          exit 1
    │   ├── WireError        … one field of a message: expected and found
    │   ├── FramingError     … how the file is split into messages
    │   └── SequenceError    … the order of the messages
    ├── TableError           inspect one table; the others continue         exit 3 (the table is held)
    └── RunError             run again, or finish what another run began    exit 1
        └── TryLaterError    … nothing is wrong: run again later             exit 75
            └── AnotherRunError  … another run works on the source, or just has

No message contains a cell's value, because messages reach logs, terminals, and tickets. The texts of other libraries'
errors may contain values: `brief` describes such an error without its text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.reasons import Reason, ReasonKind, kind_of

# A kind's code has the kind's name. Kinds about bytes have no code.
CODE_OF_KIND = {kind: ErrorCode[kind.name] for kind in ReasonKind if kind.name in ErrorCode.__members__}


class PgoutputEtlError(Exception):
    """The base class of all exceptions that this package raises on purpose.

    next_job: a job and its options that resolve the error, once the reader has followed the message. kind: the kind of
    reason, if the error holds a table. code: from the class, the kind, or the place where the error was raised.
    """

    code: ErrorCode = ErrorCode.UNEXPECTED
    next_job: tuple[str, ...] = ()
    kind: ReasonKind | None = None

    def __init__(self, text: str = "", next_job: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.next_job = next_job

    @property
    def reason(self) -> Reason:
        return Reason(str(self), self.kind)


class ConfigError(PgoutputEtlError):
    """The configuration or the command line asks for something impossible."""

    code = ErrorCode.CONFIG


class ArchiveError(PgoutputEtlError):
    """A landed file contains something that no server sends, or that this version can't read."""

    code = ErrorCode.ARCHIVE


@dataclass(slots=True)
class WireError(ArchiveError):
    """Bytes that are not a pgoutput message.

    offset: bytes from the message's first byte. short: the data ends inside the message. scanned_to: the position up to
    which the data was read, for callers that limit this cost.
    """

    code = ErrorCode.WIRE
    offset: int
    message: str
    field: str
    expected: str
    found: str
    short: bool = False
    scanned_to: int = 0

    def __str__(self) -> str:
        return f"{self.message}.{self.field} at byte {self.offset}: expected {self.expected}, found {self.found}"

    def __reduce__(self) -> tuple[type[WireError], tuple[object, ...]]:
        return WireError, astuple(self)


class FramingError(ArchiveError):
    """A file that can't be split into messages. short: True because it ends too early. scanned_to: as in WireError."""

    code = ErrorCode.FRAMING

    def __init__(self, text: str, short: bool = False, scanned_to: int = 0) -> None:
        super().__init__(text)
        self.short = short
        self.scanned_to = scanned_to


class SequenceError(ArchiveError):
    """Complete messages in an order that no server sends, or with missing messages in between."""

    code = ErrorCode.SEQUENCE


class TableError(PgoutputEtlError):
    """A table can't be updated. Its changes are left out and reported; the other tables continue."""

    code = ErrorCode.TABLE

    def __init__(self, text: str, kind: ReasonKind | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        if kind in CODE_OF_KIND:
            self.code = CODE_OF_KIND[kind]


class ServerTableError(TableError):
    """A Python worker's TableError about values that only the server has. As with RowError, the class identifies it."""

    def __init__(self, text: str) -> None:
        super().__init__(text, ReasonKind.ON_SERVER)


class RowError(ArchiveError):
    """A row that can't be read or applied, which holds its table. Each kind has its own class: Spark reports a Python
    worker's error as text, in which the class's name is the only part that no value can imitate."""

    code = ErrorCode.ROW
    classes: ClassVar[dict[str, type[RowError]]] = {}

    def __init_subclass__(cls) -> None:
        RowError.classes[cls.__name__] = cls
        if cls.kind is not None:
            cls.code = CODE_OF_KIND[cls.kind]

    @classmethod
    def of_kind(cls, text: str, kind: ReasonKind | None) -> RowError:
        return next((row_error for row_error in cls.classes.values() if row_error.kind is kind), cls)(text)


class EncodingError(RowError):
    kind = ReasonKind.NOT_UTF8


class UndeclaredTypeError(RowError):
    kind = ReasonKind.UNDECLARED


class ServerValueError(RowError):
    kind = ReasonKind.ON_SERVER


class RunError(PgoutputEtlError):
    """The state of the ledger or a target does not allow this run."""

    code = ErrorCode.RUN


class TryLaterError(RunError):
    """Nothing is wrong, and a later run of the same command may succeed."""

    code = ErrorCode.TRY_LATER


class AnotherRunError(TryLaterError):
    """Another run is active on this source, or has just finished. Run again once it has ended."""

    code = ErrorCode.ANOTHER_RUN


def coded_reason(reason: str) -> str:
    """The text, preceded by the code of its kind if it has one."""
    code = CODE_OF_KIND.get(kind) if (kind := kind_of(reason)) else None
    return reason if code is None else f"{code}: {reason}"


@contextmanager
def coded(code: ErrorCode, of_class: type[PgoutputEtlError]) -> Iterator[None]:
    """Within the context, errors of exactly this class get this code unless they already have one."""
    try:
        yield
    except PgoutputEtlError as error:
        if type(error) is of_class and error.code is of_class.code:
            error.code = code
        raise


def brief(error: BaseException) -> str:
    """Describes a library's error without its text, which may contain values of rows: the reason of a system error; for
    any other error its class, Spark's error condition, and the classes and conditions of its causes in Java."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    causes = [*dict.fromkeys(_causes(error))] or [_with_condition(type(error).__name__, error)]
    return ", caused by ".join(causes) + "".join(f", by {name} in a Python worker" for name in _worker_class(error))


def _causes(error: BaseException) -> Iterator[str]:
    return (_with_condition(name, java) for name, java in _java_causes(error))


def _java_causes(error: BaseException) -> Iterator[tuple[str, Any]]:
    """A JVM exception and its causes, with the names of their classes; incomplete if the JVM has ended. Avoids pyspark,
    whose import takes a second."""
    java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    with suppress(Exception):
        while java is not None:
            yield re.split(r"[.$]", str(java.getClass().getName()))[-1], java
            java = java.getCause()


def texts_of_storage(error: BaseException) -> list[str]:
    """The texts of an error's Java causes that are about files, which contain no values of rows."""
    storage = re.compile(r"(?:IO|FileNotFound|FileSystem|UncheckedIO)Exception")
    return [str(java.getMessage()) for name, java in _java_causes(error) if storage.fullmatch(name)]


def _with_condition(name: str, error: Any) -> str:
    """error: from Python or Java, with Spark's methods if it is one of Spark's."""
    with suppress(Exception):
        condition, state = error.getCondition(), error.getSqlState()
        return f"{name} ({condition}{f', SQLSTATE {state}' if state else ''})" if condition else name
    with suppress(Exception):
        return f"{name} (SQLSTATE {error.getSQLState()})"  # from a JDBC driver
    return name


def _worker_class(error: BaseException) -> list[str]:
    """The class of the exception that a Python worker raised, from the traceback in Spark's error. Ignores names of
    classes that this process doesn't know, because the text may contain anything."""
    names = re.findall(r"^([A-Za-z_][\w.]*)(?:$|: )", text_of(error) if _is_of_worker(error) else "", re.MULTILINE)
    return [name for name in names if _is_exception(name)][-1:]


def _is_of_worker(error: BaseException) -> bool:
    return "PythonException" in (type(error).__name__, *(cause.partition(" ")[0] for cause in _causes(error)))


def _is_exception(name: str) -> bool:
    module, _, own_name = name.rpartition(".")
    kind = getattr(sys.modules.get(module or "builtins"), own_name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def text_of(error: BaseException) -> str:
    """The error's text, to search for known words; empty if the text is in a JVM that has ended."""
    with suppress(Exception):
        return str(error)
    return ""


_OWN = re.compile(r"^pgoutput_etl(?:\.\w+)*\.(\w+: .*)", re.MULTILINE)


def own_lines(error: BaseException) -> list[str]:
    """This package's errors within an error: each one's class, and the first line of its text. A Python worker's error
    arrives as a traceback in the text of Spark's error."""
    if isinstance(error, PgoutputEtlError):
        return [f"{type(error).__name__}: {error}".partition("\n")[0]]
    return [line.rstrip() for line in _OWN.findall(text_of(error))]


def text_of_own(error: BaseException, of_class: type[PgoutputEtlError]) -> str | None:
    """The first line of an error of this class within another error, such as a Python worker's; None if not found."""
    prefix = f"{of_class.__name__}: "
    return next((line.removeprefix(prefix) for line in own_lines(error) if line.startswith(prefix)), None)


def code_of_line(line: str) -> ErrorCode:
    """The code of the class that begins a line of `own_lines`."""
    return next(
        (c.code for c in _subclasses(PgoutputEtlError) if line.startswith(f"{c.__name__}: ")), ErrorCode.UNEXPECTED
    )


def _subclasses(of_class: type[PgoutputEtlError]) -> Iterator[type[PgoutputEtlError]]:
    for direct in of_class.__subclasses__():
        yield direct
        yield from _subclasses(direct)


_STEP = "pgoutput_etl_step"


@contextmanager
def during(step: str) -> Iterator[None]:
    """Within the context, an unexpected error is reported with this step, such as "writing public.orders"."""
    try:
        yield
    except Exception as error:
        vars(error).setdefault(_STEP, step)
        raise


def step_of(error: BaseException) -> str | None:
    """The innermost step set by `during`."""
    step: str | None = vars(error).get(_STEP)
    return step


_SPARK_HAS_ENDED = "pgoutput_etl_spark_has_ended"


def mark_spark_as_ended(error: BaseException) -> None:
    """Records that Spark had ended by itself when the error was raised. While Java ends, its errors are of any kind."""
    vars(error)[_SPARK_HAS_ENDED] = True


def had_spark_ended(error: BaseException) -> bool:
    return _SPARK_HAS_ENDED in vars(error)


def without_offset(reason: str) -> str:
    """An error's text without the offset at its beginning, for a line that already has the offset."""
    return re.sub(r"^offset \d+: ", "", reason)
