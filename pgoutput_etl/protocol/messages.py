"""One dataclass per pgoutput message, the fields named as in PostgreSQL's protocol chapter.

Source: PostgreSQL documentation, "Logical Replication Message Formats", and src/backend/replication/logical/proto.c for
details that the chapter omits. OIDs and xids are unsigned 32-bit, LSNs unsigned 64-bit, and times microseconds since
2000-01-01 00:00 UTC.

Inside a stream segment (protocol 2 and up), `xid` of Relation, Type, Insert, Update, Delete, Truncate, and Message is
the (sub)transaction's; elsewhere it is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ReplicaIdentity(Enum):
    """pg_class.relreplident: determines the contents of an old tuple."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class OldTupleKind(Enum):
    """The columns in an old tuple: those of the replica identity (K), or all (O)."""

    KEY = "K"
    OLD = "O"


class TruncateOption:
    """The bits of `Truncate.options`."""

    CASCADE = 1
    RESTART_IDENTITY = 2


# The kinds of a column in TupleData: NULL or, in a key-only old tuple, not sent; unchanged TOAST; and two formats.
KIND_NULL, KIND_UNCHANGED, KIND_TEXT, KIND_BINARY = b"nutb"


@dataclass(frozen=True, slots=True)
class TupleData:
    """TupleData: per column, one byte in `kinds` and one entry in `values`.

    values: the bytes for text and binary, None for the other kinds.
    """

    kinds: bytes
    values: tuple[bytes | None, ...]

    def to_bytes(self) -> bytes:
        """The bytes in the wire format."""
        parts = [len(self.kinds).to_bytes(2, "big")]
        for kind, value in zip(self.kinds, self.values, strict=True):
            parts.append(bytes((kind,)))
            if value is not None:
                parts += (len(value).to_bytes(4, "big"), value)
        return b"".join(parts)

    def unchanged(self) -> tuple[int, ...]:
        """The positions of columns that are unchanged TOAST."""
        if KIND_UNCHANGED not in self.kinds:
            return ()
        return tuple(i for i, kind in enumerate(self.kinds) if kind == KIND_UNCHANGED)


@dataclass(frozen=True, slots=True)
class Begin:
    final_lsn: int
    commit_timestamp: int
    xid: int


@dataclass(frozen=True, slots=True)
class Message:
    xid: int | None
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class Origin:
    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class TypeForm:
    """How a user type's values are written, seen through arrays and domains. labels: of an enum, by OID. attributes:
    numbers of a composite's attributes. nested: identifies the enums and composites inside. modifier: of a domain."""

    labels: tuple[tuple[int, str], ...] = ()
    attributes: tuple[int, ...] = ()
    nested: str | None = None
    modifier: int | None = None


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A user type in the server's catalog. Only its names can change. kind: pg_type.typtype, or "a" for an array. of:
    OID of a domain's base type, an array's elements, or a range's bounds. modifier: of a domain."""

    oid: int
    kind: str
    namespace: str
    name: str
    of: int | None = None
    modifier: int = -1


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """number, form, initial, types: from catalog Messages (schema/definitions.py); None or () if none describes the
    column. number: pg_attribute.attnum. form: of a user type. initial: the text of its value in rows that are older
    than the column; None also stands for NULL. types: its user type and that type's components."""

    is_key: bool
    name: str
    type_oid: int
    type_modifier: int
    number: int | None = None
    form: TypeForm | None = None
    initial: bytes | None = field(default=None, repr=False)
    types: tuple[TypeDefinition, ...] = ()

    @property
    def full_type(self) -> tuple[int, int]:
        return self.type_oid, self.type_modifier

    @property
    def described_as(self) -> tuple[str, int, int]:
        """The column as a Relation message describes it, except for the key."""
        return self.name, self.type_oid, self.type_modifier


@dataclass(frozen=True, slots=True)
class CatalogMark:
    """The state of a table's definition according to catalog Messages. rewrites: how often the server has recomputed
    values without sending them. casts: how often only by a cast. last_number: the highest number of a column that the
    table ever had, published or not. is_created: the archive has the table from its creation on. is_whole: the
    publication sends all of its columns, except for generated ones that none sends. unlogged: number of SET UNLOGGED
    and SET LOGGED. gaps: how often it left all publications or returned; odd while it is in none. keys: column numbers
    of each unique constraint that isn't deferrable and whose columns are NOT NULL; the primary key is first. computed:
    numbers of columns whose values in older rows the server computed without sending them."""

    rewrites: int
    last_number: int
    casts: int = 0
    is_created: bool = False
    is_whole: bool = False
    unlogged: int = 0
    gaps: int = 0
    keys: tuple[tuple[int, ...], ...] = ()
    computed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """catalog: None unless catalog Messages describe this version."""

    xid: int | None
    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]
    catalog: CatalogMark | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Type:
    xid: int | None
    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    xid: int | None
    relation_oid: int
    new: TupleData


@dataclass(frozen=True, slots=True)
class Update:
    xid: int | None
    relation_oid: int
    old_kind: OldTupleKind | None
    old: TupleData | None
    new: TupleData


@dataclass(frozen=True, slots=True)
class Delete:
    xid: int | None
    relation_oid: int
    old_kind: OldTupleKind
    old: TupleData


@dataclass(frozen=True, slots=True)
class Truncate:
    xid: int | None
    options: int
    relation_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """abort_lsn, abort_timestamp: only with parallel streaming (protocol 4); otherwise None."""

    xid: int
    subxid: int
    abort_lsn: int | None
    abort_timestamp: int | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The fields that messages about PREPARE TRANSACTION share."""

    prepare_lsn: int
    end_lsn: int
    prepare_timestamp: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class BeginPrepare(_Prepared):
    """Begins a transaction whose end is Prepare."""


@dataclass(frozen=True, slots=True)
class Prepare(_Prepared):
    """Prepares a transaction that was not streamed. An empty one may have no Begin Prepare."""


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    commit_lsn: int
    end_lsn: int
    commit_timestamp: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_timestamp: int
    rollback_timestamp: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare(_Prepared):
    """Prepares a streamed transaction."""


PgoutputMessage = (
    Begin | Message | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate
    | StreamStart | StreamStop | StreamCommit | StreamAbort
    | BeginPrepare | Prepare | CommitPrepared | RollbackPrepared | StreamPrepare
)  # fmt: skip
