"""Every type of a column with its extreme values, and SQL that computes the expected values on a server.

Values in the Delta table are compared with results of SQL, not with texts: a float's bits, a date's days since 1970, a
timestamp's microseconds. The comparison is independent of pgoutput_etl's loaders.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from tests.support.scalar_values import SCALARS

Form = Literal["text", "binary"]
TEXT_OF = "concat({0})"  # calls the type's output function; a cast to text doesn't pad char(n), and gives true for t


@dataclass(frozen=True, slots=True)
class Kind:
    """The comparison of values of some types. {0} in SQL is the value, which is not NULL."""

    delta: str  # the Delta type, as Spark writes it
    truth: str = TEXT_OF  # SQL: the value as text
    holds: str = "true"  # SQL: true if the Delta type can represent the value
    same: Callable[[Any], str] = str  # the text of `truth`, for a value that was read
    ticks: pa.DataType | None = None  # the integer type behind a date or timestamp
    binary_truth: str = ""  # `truth` for the binary form, if that differs

    def sql(self, form: Form) -> str:
        return self.binary_truth if form == "binary" and self.binary_truth else self.truth

    def texts(self, array: pa.Array) -> list[str | None]:
        values = (array if self.ticks is None else array.cast(self.ticks)).to_pylist()
        return [None if value is None else self.same(value) for value in values]


def _bits(form: str) -> Callable[[float], str]:
    return lambda value: struct.pack(form, value).hex()


def _decimal(delta: str) -> Kind:
    return Kind(delta, holds="{0} not in ('NaN', 'Infinity', '-Infinity')", same=lambda value: format(value, "f"))


def _timestamp(delta: str, zone: str) -> Kind:
    borders = f"'0001-01-01 00:00{zone}' and '9999-12-31 23:59:59.999999{zone}'"
    return Kind(
        delta,
        "trim_scale(extract(epoch from {0}) * 1000000)::text",
        f"isfinite({{0}}) and {{0}} between {borders}",
        ticks=pa.int64(),
    )


STRING = Kind("string")
BOOL = Kind("boolean", same=lambda value: "ft"[value])
FLOAT4 = Kind("float", "encode(float4send({0}), 'hex')", same=_bits(">f"))
FLOAT8 = Kind("double", "encode(float8send({0}), 'hex')", same=_bits(">d"))
DATE = Kind(
    "date",
    "({0} - date '1970-01-01')::text",
    "isfinite({0}) and {0} between '0001-01-01' and '9999-12-31'",
    ticks=pa.int32(),
)
TIMESTAMP = _timestamp("timestamp_ntz", "")
TIMESTAMPTZ = _timestamp("timestamp", "+00")
BYTEA = Kind("binary", "encode({0}, 'hex')", same=lambda value: bytes(value).hex())
REG = replace(STRING, binary_truth="concat({0}::oid)")  # archives don't have the names of OIDs


@dataclass(frozen=True, slots=True)
class Case:
    """A column: its type in SQL, which is also its name, and values as texts for the type's input function."""

    type: str
    kind: Kind
    values: Sequence[str]
    is_array: bool = False
    written: str = "%s"  # SQL: converts the text to the value
    as_array: str = "{0}"  # SQL: converts the value to an array
    configured: dict[str, str] = field(default_factory=dict)  # the configuration's `types`
    since: int = 0  # the first server version with this type

    @property
    def delta(self) -> str:
        return f"array<{self.kind.delta}>" if self.is_array else self.kind.delta

    def truth(self, column: str, form: Form) -> str:
        """SQL: the value in the Delta table; of an array, the elements as JSON."""
        return self._unless_null(column, f"case when {self._holds(column)} then {self._truth(column, form)} end")

    def kept_text(self, column: str, form: Form) -> str:
        """SQL: the text in _pg_unrepresentable."""
        has_oids = form == "binary" and self.kind.binary_truth and self.is_array
        text = f"concat({column}::oid[])" if has_oids else TEXT_OF.format(column)
        return self._unless_null(column, f"case when not ({self._holds(column)}) then {text} end")

    @staticmethod
    def _unless_null(value: str, then: str) -> str:
        """num_nulls, as IS NULL is also true for a row of NULLs, which is a value."""
        return f"case when num_nulls({value}) = 0 then {then} end"

    def _truth(self, column: str, form: Form) -> str:
        truth = self.kind.sql(form)
        if not self.is_array:
            return truth.format(column)
        array = self.as_array.format(column)
        items = f"json_agg({self._unless_null(f'({array})[i]', truth.format(f'({array})[i]'))} order by i)"
        return f"(select coalesce({items}, '[]')::text from generate_subscripts({array}, 1) i)"

    def _holds(self, column: str) -> str:
        if not self.is_array:
            return self.kind.holds.format(column)
        array = self.as_array.format(column)
        is_list = f"array_ndims({array}) is null or (array_ndims({array}) = 1 and array_lower({array}, 1) = 1)"
        holds = self.kind.holds.format(f"({array})[i]")
        odd = f"select from generate_subscripts({array}, 1) i where num_nulls(({array})[i]) = 0 and not ({holds})"
        return f"({is_list}) and not exists ({odd})"


DATES = (
    "2024-02-29", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "1582-10-10", "1582-10-04", "1677-09-20",
    "0001-12-31 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31", "infinity", "-infinity",
)  # fmt: skip
TIMESTAMPS = (
    "2024-02-29 12:34:56.789012", "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999", "1582-10-10 01:02:03.000004", "1677-09-20 00:12:43", "2262-04-12 00:00:00",
    "1900-01-01 00:00:00.5", "1850-06-01 06:00:00", "0001-12-31 23:59:59.999999 BC", "4714-11-24 00:00:00 BC",
    "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999", "infinity", "-infinity",
)  # fmt: skip
INSTANTS = (*(f"{text.removesuffix(' BC')}+00{' BC' * text.endswith(' BC')}" for text in TIMESTAMPS[:-2]),
            "2024-03-31 02:30:00+05:45:17", "infinity", "-infinity")  # fmt: skip
NUMBERS = ("0", "-0.01", "1.5", "99999999.99", "-99999999.99", "NaN")
TEXTS = ("", " ", "a", "NULL", "\\", '"', "{}", "x,y;z", "tab\tline\nreturn\r", "ž\U0001f418", "\x01", "trailing  ")


def _integers(bits: int) -> tuple[str, ...]:
    return str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1), "0", "-1"


def _floats(largest: str, least_normal: str, least: str) -> tuple[str, ...]:
    ends = (largest, f"-{largest}", least_normal, least, f"-{least}")
    return (*ends, "0", "-0", "0.1", "-1.5", "1e15", "1e16", "1e-5", "NaN", "Infinity", "-Infinity")


def _sampled(name: str, count: int = 14) -> list[str]:
    values = (value for value in SCALARS[name][1](random.Random(name), count) if len(value) < 1000)  # tsquery: no TOAST
    return list(islice(values, count))


def scalars() -> Iterator[Case]:
    yield Case("bool", BOOL, ("true", "false"))
    yield Case("int2", Kind("smallint"), _integers(16))
    yield Case("int4", Kind("int"), _integers(32))
    yield Case("int8", Kind("bigint"), _integers(64))
    yield from (Case(name, Kind("bigint"), ("0", "1", "2147483648", "4294967295")) for name in ("oid", "xid"))
    yield Case("float4", FLOAT4, _floats("3.4028235e38", "1.1754944e-38", "1e-45"))
    yield Case("float8", FLOAT8, _floats("1.7976931348623157e308", "2.2250738585072014e-308", "5e-324"))
    yield Case("numeric(10,2)", _decimal("decimal(10,2)"), NUMBERS)
    yield Case("numeric(38,0)", _decimal("decimal(38,0)"), ("9" * 38, "-" + "9" * 38, "0", "NaN"))
    yield Case("numeric(38,38)", _decimal("decimal(38,38)"), (f"0.{'9' * 38}", f"-0.{'0' * 37}1", "0", "NaN"))
    yield Case("numeric(39,2)", STRING, ("9" * 37, "-0.01", "NaN"))
    yield Case("numeric(50,20)", STRING, (f"{'9' * 30}.{'9' * 20}", "0", "NaN"))
    yield Case("numeric(3,-2)", STRING, ("99900", "-100", "0", "NaN"))
    yield Case("numeric(3,5)", STRING, ("0.00999", "-0.00001", "0", "NaN"))
    specials = ("NaN", "Infinity", "-Infinity", "0", "0.00", "1e-16383", "9" * 131072, "1.10", "-12345678901234567890")
    yield Case("numeric", STRING, specials)
    yield Case("money", STRING, ("0", "-0.01", "1234.56", "-92233720368547758.08", "92233720368547758.07"))
    yield Case("date", DATE, DATES)
    yield from (Case(name, TIMESTAMP, TIMESTAMPS) for name in ("timestamp", "timestamp(3)", "timestamp(0)"))
    yield from (Case(name, TIMESTAMPTZ, INSTANTS) for name in ("timestamptz", "timestamptz(3)"))
    yield Case("time", STRING, ("24:00:00", "00:00:00", "23:59:59.999999", "04:05:06.7"))
    yield Case("timetz", STRING, ("24:00:00-15:59:59", "00:00:00+15:59:59", "12:00:00+00:30", "04:05:06.7-08"))
    # before 17, the extremes of interval (178956970 years and so on) have the bytes of infinity
    yield Case("interval", STRING, _sampled("interval", 18))
    yield Case("interval hour to second(2)", STRING, ("1 day 04:05:06.789", "-1 mon 1 day -00:00:01"))
    yield Case("interval day", STRING, ("infinity", "-infinity", "3 days"), since=17)
    yield Case("bytea", BYTEA, ("", "\\x00", "\\xff00ff", "\\x5c78", "\\x" + "00ff" * 20000))
    yield Case("text", STRING, (*TEXTS, "long " * 20000))
    yield Case("varchar(12)", STRING, TEXTS[:8])
    yield Case("varchar", STRING, TEXTS)
    yield Case("char(5)", STRING, ("", "a", "abcde", " b", "ž"))
    yield Case("name", STRING, ("", "a b", "x" * 63))
    yield Case('"char"', STRING, ("", "a", " ", "\\200", "\\377", "\\", '"'))
    yield Case("bit(13)", STRING, ("0" * 13, "1" * 13, "1010101010101"))
    yield Case("varbit", STRING, ("", "0", "1" * 17))
    documents = ("{}", "[]", "null", '""', ' {"b": 1.10,"a":2, "a": "\\u017e"} ', "1e400", '"\\ud83d\\udc18"')
    yield from (Case(name, STRING, documents) for name in ("json", "jsonb"))
    xml = ("<a/>", "", "<?xml version='1.0'?><b>ž</b>", 'plain, &amp; "quoted"')
    # the test servers have no libxml, so they can't parse xml, but they can store and send it
    yield Case("xml", STRING, xml, written="convert_to(%s, 'UTF8')::xml")
    yield Case("uuid", STRING, ("00000000-0000-0000-0000-000000000000", "f" * 32))
    yield Case("inet", STRING, _sampled("inet"))
    yield Case("cidr", STRING, _sampled("cidr", 6))
    for name in (
        "jsonpath", "tsvector", "tsquery", "point", "lseg", "box", "path", "polygon", "line", "circle", "macaddr",
        "macaddr8", "tid", "cid", "xid8", "pg_lsn", "pg_snapshot", "txid_snapshot", "int2vector", "oidvector",
    ):  # fmt: skip
        yield Case(name, STRING, _sampled(name))
    yield Case("refcursor", STRING, ("", "<unnamed portal 1>"))
    yield Case("aclitem", STRING, ("postgres=arwd/postgres", "=r*/postgres"))
    for name, value in (
        ("regproc", "now"), ("regprocedure", "sum(integer)"), ("regoper", "||/"), ("regoperator", "+(integer,integer)"),
        ("regclass", "pg_class"), ("regtype", "integer"), ("regconfig", "english"), ("regdictionary", "simple"),
        ("regnamespace", "pg_catalog"), ("regrole", "postgres"), ("regcollation", '"C"'),
    ):  # fmt: skip
        yield Case(name, REG, (value, "4294967295"))
    yield from ranges()


def ranges() -> Iterator[Case]:
    bounds = {
        "int4": ("-2147483648", "2147483646"),
        "int8": ("-9223372036854775808", "9223372036854775806"),
        "num": ("-1.50", "Infinity"),
        "date": ("4714-11-24 BC", "infinity"),
        "ts": ('"4714-11-24 00:00:00 BC"', '"294276-12-31 23:59:59.999999"'),
        "tstz": ('"0001-01-01 00:00:00+00"', '"9999-12-31 23:59:59.999999+00"'),
    }
    for name, (lower, upper) in bounds.items():
        some = ("empty", "(,)", f"[{lower},{upper})", f"[{lower},]", f"(,{upper}]", f"[{upper},{upper}]")
        yield Case(f"{name}range", STRING, some)
        multiple = ("{}", "{(,)}", f"{{[{lower},{lower}],[{upper},{upper}]}}", f"{{(,{lower}),[{upper},)}}")
        yield Case(f"{name}multirange", STRING, multiple)


USER_TYPES = """
create type mood as enum ('sad', 'Happy, "very"', 'ž');
create type pair as (n int4, t text, f float8, m mood, a int4[], d date);
create type floatrange as range (subtype = float8, subtype_diff = float8mi);
create type textrange as range (subtype = text, multirange_type_name = textmultirange);
create domain posint as int4 check (value > 0);
create domain label as varchar(5);
create domain amount as numeric(10,2);
create domain numbers as int4[];
create domain moods as mood[];
create domain feeling as mood;
create domain place as pair;
create extension vector;
create cast (bytea as xml) without function;
"""


def user_types() -> Iterator[Case]:
    moods = ("sad", 'Happy, "very"', "ž")
    yield from (Case(name, STRING, moods) for name in ("mood", "feeling"))
    pairs = (
        "(,,,,,)", '(1,"",-0,sad,"{1,NULL}",2024-02-29)', '(-1,"a ""b"", (c) \\\\",NaN,"Happy, ""very""",{},infinity)',
        "(2147483647,NULL,5e-324,ž,[0:1]={1:2},)".replace(":2}", ",2}").replace("[0:1]={1,2}", '"[0:1]={1,2}"'),
    )  # fmt: skip
    yield from (Case(name, STRING, pairs) for name in ("pair", "place"))
    yield Case("posint", Kind("int"), ("1", "2147483647"), configured={"public.posint": "int4"})
    yield Case("label", STRING, ("", "abcde", "ž "))
    yield Case("amount", STRING, NUMBERS)  # messages don't have a domain's modifier
    lists = ("{}", "{1,NULL,-2147483648}", "{{1,2},{3,4}}", "[0:1]={1,2}")
    yield Case("numbers", Kind("int"), lists, is_array=True)
    yield Case("moods", STRING, ("{}", '{sad,NULL,"Happy, \\"very\\""}', "{{sad},{ž}}"), is_array=True)
    floats = ("empty", "(,)", "[-0,1e300]", "[NaN,)", "(-Infinity,Infinity)")
    yield Case("floatrange", STRING, floats)
    yield Case("floatmultirange", STRING, ("{}", "{[-1.5,0.1),[1e20,NaN]}"))
    texts = ("empty", "(,)", '["","a b"]', '["\\"","\\\\"]', "[a,b)", "(,ž]")
    yield Case("textrange", STRING, texts, configured={"public.textrange": "range(text)"})
    configured = {"public.textmultirange": "multirange(text)"}
    yield Case("textmultirange", STRING, ("{}", '{["",a),["b c",)}'), configured=configured)
    yield Case("vector(3)", FLOAT4, ("[0,-0,1.5]", "[3.4028235e38,-1e-45,0.1]"), True, as_array="{0}::real[]")


def array_of(case: Case) -> Case:
    """Arrays of each single value, of all values, of none, with two dimensions, and with lower bound 0."""
    delimiter = ";" if case.type == "box" else ","
    items = ['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in case.values]
    first, last = items[0], items[-1]
    values = [f"{{{item}{delimiter}NULL}}" for item in items]
    values += ["{}", "{NULL}", "{" + delimiter.join(items) + "}"]
    values += [f"{{{{{first}}}{delimiter}{{{last}}}}}", f"[0:1]={{{first}{delimiter}{last}}}"]
    if case.type == "xml":
        values = ["{}", "{" + ",".join("\\\\x" + value.encode().hex() for value in case.values) + ",NULL}"]
    written = "%s::bytea[]::xml[]" if case.type == "xml" else case.written
    return replace(case, type=f"{case.type}[]", values=values, is_array=True, written=written)


def cases(version: int, form: Form) -> list[Case]:
    """aclitem has no binary form: a server can't send an array of it to a slot with binary 'true'."""
    plain = [case for case in (*scalars(), *user_types()) if case.since <= version]
    arrays = [array_of(case) for case in plain if not case.is_array]
    return [*plain, *(case for case in arrays if form == "text" or case.type != "aclitem[]")]
