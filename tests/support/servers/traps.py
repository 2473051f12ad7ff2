"""Functions, operators, types, and views in `public` that PostgreSQL may take for its own, as somebody could make them
who may create objects there. Each writes a line to the server's log when it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from typing import Any

import psycopg

from tests.support.servers.postgres import Server

# Arguments that fit better than pseudo-types.
_SCALARS = ("text", "name", "integer", "bigint", "oid", "regclass", "boolean", "jsonb", "pg_lsn")
_ROWS = ("pg_publication", "pg_publication_rel", "pg_publication_tables", "pg_attribute", "pg_replication_slots")
_ARRAYS = ("text[]", "name[]", "oid[]", "bigint[]")
_PSEUDO = {
    **dict.fromkeys(('"any"', "anyelement", "anynonarray", "anycompatible"), _SCALARS + _ROWS),
    **dict.fromkeys(("anyarray", "anycompatiblearray"), _ARRAYS),
}
_STRINGS = {"text": ("text", "name"), "name": ("name", "text")}
# Other types without values of their own: no call has them.
_NEVER = re.compile(r"^(any|internal|cstring|trigger|record$|void|event_trigger|.*_handler)")
_PSEUDO_TYPE = re.compile(r"\bpg_ddl_command\b")
_MOST_PER_OVERLOAD = 60

_BODY = "language plpgsql as $$ begin raise log 'trap: %'; return{result}; end $$"

_IS_TRAPPED = """create function public.is_trapped(name pg_catalog.text) returns boolean
language plpgsql as $$ begin raise log 'trap: %', name; return true; end $$"""

_FUNCTIONS = """
select p.proname, p.prokind, p.proretset, p.provariadic <> 0, format_type(p.prorettype, null),
  array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a(t, n) order by n),
  (select string_agg(format('%%I %%s', m.name, format_type(m.type, null)), ', ' order by m.n)
   from unnest(p.proargnames, p.proallargtypes, p.proargmodes) with ordinality m(name, type, mode, n)
   where m.mode in ('o', 't'))
from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any(%s) and p.prokind in ('f', 'a')
  and not exists (select from pg_aggregate g where g.aggfnoid = p.oid and g.aggkind <> 'n')
"""

_OPERATORS = """
select oprname, case when oprleft <> 0 then format_type(oprleft, null) end, format_type(oprright, null),
  format_type(oprresult, null)
from pg_operator where oprnamespace = 'pg_catalog'::regnamespace and oprname = any(%s) and oprresult <> 0
"""

_RELATIONS = "select relname from pg_class where relnamespace = 'pg_catalog'::regnamespace and relname = any(%s)"

_TYPES = """
select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace and typtype = 'b' and typname = any(%s)
"""


def set_traps(server: Server, texts: Iterable[str]) -> None:
    """Creates traps for everything that the SQL texts name, and for all that fits as well."""
    text = "\n".join(texts)
    words = sorted({word.lower() for word in re.findall(r"[A-Za-z_]\w*", text)})
    symbols = sorted(set(re.findall(r"[-+*/<>=~!@#%^&|?]+", text)))
    with server.connect() as connection:
        connection.execute("set search_path = ''")
        statements = [_IS_TRAPPED]
        functions = connection.execute(_FUNCTIONS, [words]).fetchall()
        statements += dict.fromkeys(statement for row in functions for statement in _function(*row))
        operators = connection.execute(_OPERATORS, [symbols]).fetchall()
        statements += _operators(operators)
        for (name,) in connection.execute(_RELATIONS, [words]).fetchall():
            if not name.endswith(("_index", "_oid")):
                select = f"select * from pg_catalog.{name} where public.is_trapped('{name}')"
                statements.append(f"create view public.{name} as {select}")
        for (name,) in connection.execute(_TYPES, [words]).fetchall():
            check = f"check (public.is_trapped('{name}'))"
            statements.append(f'create domain public."{name}" as pg_catalog."{name}" {check}')
        _run(connection, statements)


def _run(connection: psycopg.Connection[tuple[Any, ...]], statements: Sequence[str]) -> None:
    """The same signature may come from several overloads; the first one stays."""
    quoted = "do $do$ begin {}; exception when duplicate_function or invalid_table_definition then null; end $do$;\n"
    connection.execute("".join(map(quoted.format, statements)).encode())


def _function(
    name: str, kind: str, is_set: bool, is_variadic: bool, result: str, arguments: list[str], columns: str | None
) -> Iterator[str]:
    """Traps for one overload."""
    variants = [arguments]
    if is_variadic:
        element = '"any"' if arguments[-1] == '"any"' else arguments[-1].removesuffix("[]")
        variants += [[*arguments[:-1], *[element] * more] for more in (0, 1, 2)]
    result = "text" if _NEVER.match(result) and columns is None and result not in ("record", "void") else result
    for variant in variants:
        for types in islice(product(*map(_candidates, variant)), _MOST_PER_OVERLOAD):
            signature = f"{name}({', '.join(types)})"
            if kind == "a":
                yield _create(f"trapped_{name}({', '.join((result, *types))})", result, signature)
                state = f"(sfunc = public.trapped_{name}, stype = {result})"
                yield f"create aggregate public.{name}({', '.join(types) or '*'}) {state}"
            elif columns is not None:
                yield _create(signature, f"table ({_PSEUDO_TYPE.sub('text', columns)})", signature, "")
            else:
                yield _create(signature, f"{'setof ' if is_set else ''}{result}", signature, "" if is_set else None)


def _create(signature: str, result: str, name: str, value: str | None = None) -> str:
    value = ("" if result == "void" else " null") if value is None else value
    body = _BODY.format(result=value).replace("%", name.replace("%", "%%"))
    return f"create function public.{signature} returns {result} {body}"


def _candidates(argument: str) -> tuple[str, ...]:
    if argument in _PSEUDO:
        return _PSEUDO[argument]
    return () if _NEVER.match(argument) else _STRINGS.get(argument, (argument,))


def _operators(found: Sequence[tuple[str, str | None, str, str]]) -> Iterator[str]:
    results: dict[tuple[str, str | None, str], str] = {}
    for name, left, right, result in found:
        for pair in product((None,) if left is None else _candidates(left), _candidates(right)):
            results.setdefault((name, *pair), "text[]" if _NEVER.match(result) else result)
    for name in {name for name, *_ in found}:
        others = [result for other, left, _, result in found if other == name and left is not None]
        plain = next((result for result in others if not _NEVER.match(result)), None)
        for left, right in product(_SCALARS + _ARRAYS, _SCALARS + _ARRAYS):
            # A literal would get the other side's type, and may be no value of it.
            if plain is not None and (left != right or left in (*_STRINGS, *_ARRAYS, "regclass")):
                results.setdefault((name, left, right), plain)
    for number, ((name, left, right), result) in enumerate(results.items()):
        types = right if left is None else f"{left}, {right}"
        yield _create(f"trapped_operator_{number}({types})", result, f"{name} ({types})")
        sides = f"rightarg = {right}" if left is None else f"leftarg = {left}, rightarg = {right}"
        yield f"create operator public.{name} (function = public.trapped_operator_{number}, {sides})"


@contextmanager
def sprung(server: Server) -> Iterator[list[str]]:
    """The traps that run within the context, after it."""
    log = server.folder / "log"
    start, names = log.stat().st_size, list[str]()
    yield names
    with log.open("rb") as lines:
        lines.seek(start)
        names += re.findall(r"LOG:  trap: (.*)", lines.read().decode(errors="replace"))
