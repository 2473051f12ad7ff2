"""SQL that undoes steps on a PostgreSQL server, in one transaction that changes nothing if a row is not what it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pgoutput_etl.jobs.undo.steps import Conflict, Operation, Row, Step, Text
from pgoutput_etl.jobs.verify.canonical_text import ComparedColumn
from pgoutput_etl.postgres.queries import SCRIPT_SETTINGS, as_text, identifier, literal

# Types whose values are equal exactly if PostgreSQL's = says so; the others compare as texts.
_EQUAL = frozenset(
    {
        *("int2", "int4", "int8", "numeric", "bool", "text", "varchar", "bpchar", "name", "oid", "uuid", "bytea"),
        *("date", "time", "timestamp", "timestamptz", "jsonb"),
    }
)

_BEGIN = r"""\set ON_ERROR_STOP on
BEGIN;
{settings}
-- Each step must find exactly one row, and leave what it says.
CREATE FUNCTION pg_temp.undone(rows bigint, is_restored boolean, step text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF rows <> 1 THEN RAISE EXCEPTION 'nothing is undone: % finds % rows that are what they were', step, rows; END IF;
  IF NOT is_restored THEN RAISE EXCEPTION 'nothing is undone: a trigger changes the row of %', step; END IF;
END $$;

-- Foreign keys between these tables are checked at the end. Other settings of a constraint stay.
CREATE TEMPORARY TABLE undo_constraints ON COMMIT DROP AS
SELECT c.conrelid::regclass AS relation, c.conname AS name FROM pg_catalog.pg_constraint c
WHERE c.contype = 'f' AND NOT c.condeferrable AND c.conparentid = 0
  AND c.conrelid = ANY (ARRAY[{tables}]::regclass[]) AND c.confrelid = ANY (ARRAY[{tables}]::regclass[]);
DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT * FROM undo_constraints LOOP
    EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE', c.relation, c.name);
  END LOOP;
END $$;
SET CONSTRAINTS ALL DEFERRED;

-- Later: did a cascade or a trigger update or delete other rows?
CREATE TEMPORARY TABLE undo_expected (relation regclass, changes bigint) ON COMMIT DROP;
INSERT INTO undo_expected VALUES
{expected};

"""

_END = """
SET CONSTRAINTS ALL IMMEDIATE;
DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT relation::regclass FROM (
      SELECT coalesce(pg_partition_root(relid), relid) AS relation, n_tup_upd + n_tup_del AS changes
        FROM pg_catalog.pg_stat_xact_user_tables WHERE schemaname !~ '^pg_temp'
      UNION ALL SELECT coalesce(pg_partition_root(relation), relation), -changes FROM undo_expected
    ) AS counts GROUP BY relation HAVING sum(changes) > 0
  LOOP
    RAISE EXCEPTION 'nothing is undone: a cascade or a trigger updates or deletes other rows of %', c.relation;
  END LOOP;
  FOR c IN SELECT * FROM undo_constraints LOOP
    EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I NOT DEFERRABLE', c.relation, c.name);
  END LOOP;
END $$;
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class UndoneTable:
    """key: positions of the key's columns; empty in a table without a key."""

    schema: str
    name: str
    columns: tuple[ComparedColumn, ...]
    key: tuple[int, ...]
    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def place(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def reverse(self, step: Step) -> str:
        """The statement that undoes a step, and returns for each row whether it is what it was."""
        before, after = step.before, step.after
        if before is None:
            assert after is not None
            return f"DELETE FROM {self.place} WHERE {self._is_one(after)} RETURNING true AS is_restored"
        restored = self._known(before) if after is None else _changed(before, after)
        names = [identifier(self.columns[i].name) for i in restored]
        values = [_literal(before.texts[i]) for i in restored]
        if after is None:
            # For columns that are GENERATED ALWAYS AS IDENTITY
            overriding = "OVERRIDING SYSTEM VALUE"
            change = f"INSERT INTO {self.place} ({', '.join(names)}) {overriding} VALUES ({', '.join(values)})"
        else:
            pairs = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
            change = f"UPDATE {self.place} SET {pairs} WHERE {self._is_one(after)}"
        return f"{change} RETURNING {self._has(before, restored)} AS is_restored"

    def _known(self, row: Row) -> list[int]:
        """Positions of known values, with the key's first."""
        return [*self.key, *(i for i in range(len(self.columns)) if i not in row.unknown and i not in self.key)]

    def _has(self, row: Row, positions: Iterable[int]) -> str:
        """The condition that a row has these values."""
        return " AND ".join(_has(self.columns[i], row.texts[i]) for i in positions)

    def _is_one(self, row: Row) -> str:
        """The condition that a row has all these values; in a table without a key, one of several such rows."""
        condition = self._has(row, self._known(row))
        return condition if self.key else f"ctid = (SELECT ctid FROM {self.place} WHERE {condition} LIMIT 1)"


def _changed(before: Row, after: Row) -> list[int]:
    """Positions of the columns to restore; at least one, so that the statement is an UPDATE."""
    known = [i for i in range(len(before.texts)) if i not in before.unknown]
    return [i for i in known if before.texts[i] != after.texts[i]] or known[:1]


def _literal(text: Text) -> str:
    return "NULL" if text is None else literal(text)


def _has(column: ComparedColumn, text: Text) -> str:
    name = identifier(column.name)
    if text is None:
        return f"{name} IS NULL"
    is_equal = column.type.name.partition("(")[0].removesuffix("[]") in _EQUAL
    return f"({name if is_equal else as_text(name)} = {literal(text)}) IS TRUE"


def script(title: str, tables: Sequence[UndoneTable]) -> Iterator[str]:
    """Parts of a script for psql that undoes all steps of all tables, the last one first: each finds the rows and the
    unique values that it left, and rows that refer to others go before them."""
    named = [(step.lsn, step.sequence, table, step) for table in tables for step in table.steps]
    named.sort(key=lambda entry: entry[:2], reverse=True)
    yield "".join(f"-- {line}\n" for line in title.splitlines())
    for table in tables:
        yield from _left_out(table)
    touched = [table for table in tables if table.steps]
    if not touched:
        yield "-- There is nothing to undo.\n"
        return
    places = ", ".join(literal(table.place) for table in touched)
    expected = ",\n".join(map(_expected, touched))
    yield _BEGIN.format(settings=SCRIPT_SETTINGS, tables=places, expected=expected)
    for number, (_, _, table, step) in enumerate(named, 1):
        about = literal(f"step {number}, {table.full_name}")
        checked = f"SELECT pg_temp.undone(count(*), bool_and(is_restored), {about}) AS undone FROM s"
        yield f"WITH s AS ({table.reverse(step)}) {checked} \\gset\n"
    yield _END


def _expected(table: UndoneTable) -> str:
    """A row of undo_expected: the UPDATEs and DELETEs of the script."""
    changes = sum(step.operation is not Operation.DELETE for step in table.steps)
    return f"({literal(table.place)}::regclass, {changes})"


def _left_out(table: UndoneTable) -> Iterator[str]:
    """Comments with the rows that are not restored."""
    for conflict in table.conflicts:
        keys = ", ".join(map(_comment, conflict.keys))
        why = f"changed again by {', '.join(map(str, conflict.xids))}" if conflict.xids else "a value is not known"
        yield f"-- Not undone: {_one_line(table.place)} {keys}: {why}\n"


def _comment(key: Iterable[Text]) -> str:
    return _one_line(f"({', '.join(map(_literal, key))})")


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
