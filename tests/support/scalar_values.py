"""Random and extreme values of every scalar type, as text that PostgreSQL reads."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence

Values = Callable[[random.Random, int], Iterator[str]]
WORDS = ("a", "fat", "cat's", "back\\slash", "žluť", "it''s", "two words", "x:1A", "&", "(", "\U0001f418", "<->", ":*")


def integers(bits: int, *, signed: bool) -> Values:
    def values(dice: random.Random, count: int) -> Iterator[str]:
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        yield from map(str, (least, most, 0, 1))
        for _ in range(count):
            size = dice.randrange(1, bits)
            yield str(max(least, min(most, dice.getrandbits(size) * (dice.choice((1, -1)) if signed else 1))))

    return values


def float_of(form: str, bits: int) -> float:
    return struct.unpack(f">{form}", bits.to_bytes(struct.calcsize(f">{form}"), "big"))[0]  # type: ignore[no-any-return]


def floats(form: str) -> Values:
    """Random bits, common magnitudes, every power of two with its neighbors, and powers of ten."""
    size = 8 * struct.calcsize(f">{form}")
    fraction_bits = {32: 23, 64: 52}[size]

    def values(dice: random.Random, count: int) -> Iterator[str]:
        yield from ("NaN", "Infinity", "-Infinity", "0", "-0")
        powers = range(1, 2 ** (size - 1 - fraction_bits) - 1)
        patterns = [(power << fraction_bits) + offset for power in powers for offset in (-1, 0, 1)]
        patterns += [1 << bit for bit in range(fraction_bits)] + [1, 2, 3, (powers[-1] + 1 << fraction_bits) - 1]
        patterns += [dice.getrandbits(size) for _ in range(count)]
        yield from (repr(float_of(form, pattern)) for pattern in patterns)
        yield from (repr(dice.uniform(-1000, 1000)) for _ in range(count))
        limit = {32: 38, 64: 307}[size]
        for power in range(-limit, limit + 1):
            yield f"1e{power}"
            yield f"{dice.randrange(1, 10 ** dice.randrange(1, 18))}e{max(-limit, min(limit - 18, power))}"

    return values


def some_float(dice: random.Random) -> str:
    return dice.choice(
        (
            lambda: repr(float_of("d", dice.getrandbits(64))),
            lambda: repr(dice.uniform(-100, 100)),
            lambda: str(dice.randrange(-20, 20)),
            lambda: f"{dice.randrange(1, 10)}e{dice.randrange(-7, 30)}",
            lambda: dice.choice(("0", "-0", "NaN", "Infinity", "-Infinity", "1e23", "1e15", "1e16", "0.0001", "1e-5")),
        )
    )()


def finite_float(dice: random.Random) -> str:
    return next(text for text in iter(lambda: some_float(dice), "") if text.lstrip("-")[0].isdigit())


def numerics(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("NaN", "Infinity", "-Infinity", "0", "0.00", "-0.00", "1e-16383", "9" * 131072, "1e131071", "0.0001")
    yield from (f"{sign}1e{power}" for power in range(-40, 40) for sign in ("", "-"))
    for _ in range(count):
        digits = str(dice.getrandbits(dice.randrange(1, 400)))
        point = dice.randrange(len(digits) + 1)
        zeros = "0" * dice.choice((0, 0, 1, 2, 3, 4, 5, 8))
        shift = dice.choice((0, 0, 0, dice.randrange(-60, 60)))
        yield f"{dice.choice('+-')}{digits[:point] or 0}{zeros}.{zeros}{digits[point:] or 0}{zeros}e{shift}"


def decimals(precision: int, scale: int) -> Values:
    def values(dice: random.Random, count: int) -> Iterator[str]:
        yield "NaN"
        most = 10**precision - 1
        for number in (0, 1, most, *(dice.randint(0, 10 ** dice.randint(0, precision) - 1) for _ in range(count))):
            yield f"{dice.choice('+-')}{number}e-{scale}"

    return values


def time_of_day(dice: random.Random) -> str:
    fraction = dice.choice(("", f".{dice.randrange(10**6):06d}", f".{dice.randrange(1000):03d}", ".000001"))
    clock = (dice.randrange(24), dice.randrange(60), dice.randrange(60))
    return "{:02d}:{:02d}:{:02d}".format(*clock) + fraction


def date(dice: random.Random, last_year: int) -> str:
    year = dice.choice((dice.randrange(1, 10), dice.randrange(1800, 2100), dice.randrange(9990, 10010)))
    year = dice.choice((year, dice.randrange(1, last_year)))
    return f"{year:04d}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}"


def date_bc(dice: random.Random) -> str:
    return f"{dice.randrange(1, 4713):04d}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}"


def dates(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-12-31 BC", "0001-01-01")
    yield from ("9999-12-31", "10000-01-01", "0001-02-29 BC", "2000-02-29", "1999-12-31", "2000-01-01", "1970-01-01")
    for _ in range(count):
        yield date(dice, 5_874_897)
        yield f"{date_bc(dice)} BC" if dice.random() < 0.3 else date(dice, 3000)


def timestamps(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("infinity", "-infinity", "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999")
    yield from ("0001-01-01 00:00:00", "0001-12-31 23:59:59.999999 BC", "9999-12-31 23:59:59.999999")
    yield from ("10000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "2000-01-01 00:00:00", "1969-12-31 23:59:59.5")
    for _ in range(count):
        yield f"{date(dice, 294_276)} {time_of_day(dice)}"
        if dice.random() < 0.3:
            yield f"{date_bc(dice)} {time_of_day(dice)} BC"


def times(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("00:00:00", "24:00:00", "23:59:59.999999")
    yield from (time_of_day(dice) for _ in range(count))


def timetzs(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("24:00:00-15:59:59", "00:00:00+15:59:59", "00:00:00+00", "12:00:00-00:00:01", "12:00:00+00:30")
    for _ in range(count):
        offset = dice.choice(("", f":{dice.randrange(60):02d}", f":{dice.randrange(60):02d}:{dice.randrange(60):02d}"))
        yield f"{time_of_day(dice)}{dice.choice('+-')}{dice.randrange(16):02d}{offset}"


def intervals(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("0", "1 year", "-1 year", "1 year -1 day", "1 mon -1 day 00:00:01", "-1 mon 1 day -00:00:00.000001")
    yield from ("-178956970 years -8 mons", "178956970 years 7 mons", "2147483647 days", "-2147483648 days")
    yield from ("2562047788:00:54.775807", "-2562047788:00:54.775807", "-1 day 10:00:00", "11 mons", "-13 mons 1 day")
    for _ in range(count):
        months, days = (
            dice.choice((0, 1, -1, 12, dice.randrange(-30, 30), dice.randrange(-(2**31), 2**31))) for _ in "md"
        )
        time = dice.choice(
            (0, dice.randrange(-10, 10), dice.randrange(-(10**11), 10**11), dice.randrange(-(2**62), 2**62))
        )
        yield f"{months} mons {days} days {time} microseconds"


def any_text(dice: random.Random, length: int = 12) -> str:
    ranges = ((1, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
    return "".join(chr(dice.randint(*dice.choice(ranges))) for _ in range(dice.randint(0, length)))


def texts(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("", " ", "NULL", "\\")
    yield from (any_text(dice) for _ in range(count))


def documents(dice: random.Random, count: int) -> Iterator[str]:
    def document(depth: int) -> object:
        kind = dice.randrange(7 if depth else 5)
        plain = (None, dice.random() < 0.5, dice.randrange(-(10**18), 10**18), dice.uniform(-1, 1), any_text(dice))
        if kind < 5:
            return plain[kind]
        many = [document(depth - 1) for _ in range(dice.randrange(4))]
        return many if kind == 5 else {any_text(dice, 3): value for value in many}

    yield from ("{}", "[]", '""', "null", "0", "-0.0", "1e400", '{"b":1,"a":2}')
    yield from (json.dumps(document(3), ensure_ascii=False) for _ in range(count))


def json_paths(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("$", "strict $", "lax $.a[*] ? (@.b > 1)", '$."two words"[0 to last]', "$.**{2 to 3}.a", "-$.a + 1.5")
    for _ in range(count):
        yield f"${dice.choice(('.a', '[*]', '.*', '.size()'))} ? (@ {dice.choice('<>')} {dice.randrange(100)})"


def a_word(dice: random.Random) -> str:
    word = dice.choice((dice.choice(WORDS), any_text(dice, 4)))
    return "'" + (word or "x").replace("\\", "\\\\").replace("'", "''") + "'"


def ts_vectors(dice: random.Random, count: int) -> Iterator[str]:
    def lexeme() -> str:
        positions = (f"{dice.randrange(1, 20000)}{dice.choice('ABCD ')}".rstrip() for _ in range(dice.randrange(4)))
        joined = ",".join(positions)
        return a_word(dice) + (f":{joined}" if joined else "")

    yield ""
    yield from (" ".join(lexeme() for _ in range(dice.randrange(6))) for _ in range(count))


def ts_queries(dice: random.Random, count: int) -> Iterator[str]:
    def query(depth: int) -> str:
        if depth == 0 or dice.random() < 0.2:
            weights = "".join(letter for letter in "*ABCD" if dice.random() < 0.15)
            return a_word(dice) + (f":{weights}" if weights else "")
        if dice.random() < 0.2:
            return f"!({query(depth - 1)})"
        sign = dice.choice(("&", "|", "<->", f"<{dice.randrange(0, 16384)}>"))
        return f"({query(depth - 1)}) {sign} ({query(depth - 1)})"

    yield from ("", " & ".join("a" for _ in range(3000)), "!" * 20 + "a", "(" * 20 + "a" + " <-> b)" * 20)
    yield from (query(dice.randrange(5)) for _ in range(count))


def ip_address(dice: random.Random) -> tuple[str, int]:
    if dice.random() < 0.3:
        return ".".join(str(dice.choice((0, 255, dice.randrange(256)))) for _ in range(4)), 32
    shape = dice.choice((0, 0.5, 0.9))
    words = [dice.choice((0xFFFF, 1, dice.getrandbits(16))) if dice.random() > shape else 0 for _ in range(8)]
    if dice.random() < 0.3:
        words[: dice.randrange(9)] = []
        words = [0] * (8 - len(words)) + words
        words[5] = dice.choice((words[5], 0xFFFF))
    return ":".join(f"{word:x}" for word in words), 128


def inets(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("::", "::1", "::/0", "0.0.0.0/0", "::ffff:0:0", "::1:0", "::ffff", "1::", "0:0:1::", "::1.2.3.4/96")
    for _ in range(count):
        address, bits = ip_address(dice)
        yield address + dice.choice(("", f"/{dice.randrange(bits + 1)}"))


def cidrs(dice: random.Random, count: int) -> Iterator[str]:
    """Whole addresses and prefixes of zeros, which need no network() to clear host bits."""
    yield from ("10.0.0.0/8", "::/0", "0.0.0.0/0", "fe80::/10", "::ffff:0:0/96", "192.168.0.128/25")
    for _ in range(count):
        address, bits = ip_address(dice)
        yield f"{address}/{bits}"
        yield f"{dice.getrandbits(16):x}:{dice.getrandbits(16):x}::/{dice.randrange(32, 129)}"


def mac_addresses(size: int) -> Values:
    def values(dice: random.Random, count: int) -> Iterator[str]:
        yield from (dice.randbytes(size).hex(":") for _ in range(count))

    return values


def points(form: str, least: int, most: int) -> Values:
    """form: a format with {} for the points."""

    def values(dice: random.Random, count: int) -> Iterator[str]:
        for _ in range(count):
            number = dice.randint(least, most)
            joined = ",".join(f"({some_float(dice)},{some_float(dice)})" for _ in range(number))
            yield form.format(joined)

    return values


def paths(dice: random.Random, count: int) -> Iterator[str]:
    yield from points("[{}]", 1, 9)(dice, count // 2)
    yield from points("({})", 1, 9)(dice, count // 2)


def lines(dice: random.Random, count: int) -> Iterator[str]:
    yield from (f"{{1,{finite_float(dice)},{finite_float(dice)}}}" for _ in range(count))


def circles(dice: random.Random, count: int) -> Iterator[str]:
    yield from (f"<({some_float(dice)},{some_float(dice)}),{finite_float(dice).lstrip('-')}>" for _ in range(count))


def bit_strings(least: int, most: int) -> Values:
    def values(dice: random.Random, count: int) -> Iterator[str]:
        for _ in range(count):
            yield "".join(dice.choice("01") for _ in range(dice.randint(least, most)))

    return values


def amounts(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("0", "-0.01", "0.99", "-1", "999.99", "1000", "-92233720368547758.08", "92233720368547758.07")
    yield from (
        f"{dice.choice('+-')}{dice.getrandbits(dice.randrange(1, 56))}.{dice.randrange(100):02d}" for _ in range(count)
    )


def uuids(dice: random.Random, count: int) -> Iterator[str]:
    yield from (dice.randbytes(16).hex() for _ in range(count))


def tids(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("(4294967295,65535)", "(0,0)")
    yield from (f"({dice.getrandbits(32)},{dice.getrandbits(16)})" for _ in range(count))


def lsns(dice: random.Random, count: int) -> Iterator[str]:
    yield from ("0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848")
    yield from (f"{dice.getrandbits(dice.randrange(1, 33)):X}/{dice.getrandbits(32):X}" for _ in range(count))


def snapshots(dice: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        xmin = dice.randrange(1, 2**62)
        running = sorted({xmin + dice.randrange(1000) for _ in range(dice.randrange(5))})
        yield f"{xmin}:{xmin + 1000}:{','.join(map(str, running))}"


def absent_oids(dice: random.Random, count: int) -> Iterator[str]:
    """Unused OIDs and 0, which print as numbers."""
    yield "0"
    yield from (str(dice.randrange(2_000_000_000, 2**32)) for _ in range(min(count, 200)))


def vectors(bits: int, *, signed: bool) -> Values:
    def values(dice: random.Random, count: int) -> Iterator[str]:
        yield ""
        for _ in range(count):
            yield " ".join(integers(bits, signed=signed)(dice, dice.randrange(6)))

    return values


def chars(_dice: random.Random, _count: int) -> Iterator[str]:
    yield from ("" if byte == 0 else f"\\{byte:03o}" if byte >= 0x80 else chr(byte) for byte in range(256))


def names(dice: random.Random, count: int) -> Iterator[str]:
    yield from (any_text(dice, 10) for _ in range(count))


def byte_strings(dice: random.Random, count: int) -> Iterator[str]:
    yield from (f"\\x{dice.randbytes(dice.randrange(40)).hex()}" for _ in range(count))


def constant(values: Sequence[str]) -> Values:
    return lambda _dice, _count: iter(values)


SCALARS: dict[str, tuple[str, Values]] = {  # type -> its send function, its values
    "bool": ("boolsend", constant(("t", "f"))),
    "int2": ("int2send", integers(16, signed=True)),
    "int4": ("int4send", integers(32, signed=True)),
    "int8": ("int8send", integers(64, signed=True)),
    "oid": ("oidsend", integers(32, signed=False)),
    "xid": ("xidsend", integers(32, signed=False)),
    "cid": ("cidsend", integers(32, signed=False)),
    "xid8": ("xid8send", integers(64, signed=False)),
    "float4": ("float4send", floats("f")),
    "float8": ("float8send", floats("d")),
    "numeric": ("numeric_send", numerics),
    "numeric(10,2)": ("numeric_send", decimals(10, 2)),
    "numeric(38,38)": ("numeric_send", decimals(38, 38)),
    "numeric(38,5)": ("numeric_send", decimals(38, 5)),
    "money": ("cash_send", amounts),
    "bytea": ("byteasend", byte_strings),
    "text": ("textsend", texts),
    "varchar(20)": ("varcharsend", texts),
    "char(20)": ("bpcharsend", texts),
    "name": ("namesend", names),
    '"char"': ("charsend", chars),
    "date": ("date_send", dates),
    "timestamp": ("timestamp_send", timestamps),
    "timestamptz": ("timestamptz_send", timestamps),
    "time": ("time_send", times),
    "timetz": ("timetz_send", timetzs),
    "interval": ("interval_send", intervals),
    "bit(13)": ("bit_send", bit_strings(13, 13)),
    "varbit": ("varbit_send", bit_strings(0, 40)),
    "json": ("json_send", documents),
    "jsonb": ("jsonb_send", documents),
    "jsonpath": ("jsonpath_send", json_paths),
    "tsvector": ("tsvectorsend", ts_vectors),
    "tsquery": ("tsquerysend", ts_queries),
    "uuid": ("uuid_send", uuids),
    "tid": ("tidsend", tids),
    "pg_lsn": ("pg_lsn_send", lsns),
    "pg_snapshot": ("pg_snapshot_send", snapshots),
    "txid_snapshot": ("txid_snapshot_send", snapshots),
    "oid::regproc": ("regprocsend", absent_oids),
    "oid::regprocedure": ("regproceduresend", absent_oids),
    "oid::regoper": ("regopersend", absent_oids),
    "oid::regoperator": ("regoperatorsend", absent_oids),
    "oid::regclass": ("regclasssend", absent_oids),
    "oid::regtype": ("regtypesend", absent_oids),
    "oid::regconfig": ("regconfigsend", absent_oids),
    "oid::regdictionary": ("regdictionarysend", absent_oids),
    "oid::regnamespace": ("regnamespacesend", absent_oids),
    "oid::regrole": ("regrolesend", absent_oids),
    "oid::regcollation": ("regcollationsend", absent_oids),
    "int2vector": ("int2vectorsend", vectors(16, signed=True)),
    "oidvector": ("oidvectorsend", vectors(32, signed=False)),
    "inet": ("inet_send", inets),
    "cidr": ("cidr_send", cidrs),
    "macaddr": ("macaddr_send", mac_addresses(6)),
    "macaddr8": ("macaddr8_send", mac_addresses(8)),
    "point": ("point_send", points("{}", 1, 1)),
    "lseg": ("lseg_send", points("[{}]", 2, 2)),
    "box": ("box_send", points("{}", 2, 2)),
    "path": ("path_send", paths),
    "polygon": ("poly_send", points("({})", 1, 9)),
    "line": ("line_send", lines),
    "circle": ("circle_send", circles),
}
