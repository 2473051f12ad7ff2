"""SQL that undoes steps on a PostgreSQL server, in one transaction that changes nothing if any row differs from what it
should be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pgoutput_etl.answers.undo.steps import Conflict, Operation, Row, Step, Text
from pgoutput_etl.postgres.queries import SCRIPT_SETTINGS, as_text, identifier, insertion, literal, qualified
from pgoutput_etl.types.canonical_text import ComparedColumn

# Functions and operators in other schemas may match a call better than PostgreSQL's, so the script runs without a
# search path. Triggers and CHECK constraints may need the caller's, so the steps set it; names in them are qualified.
_BEGIN = r"""\set ON_ERROR_STOP on
BEGIN;
SELECT pg_catalog.current_setting('search_path') AS caller_path \gset
{settings}
-- The tables, and the changes that this script makes to them. Partitions count as their root.
CREATE FUNCTION pg_temp.undo_root(relation regclass) RETURNS regclass LANGUAGE sql AS
  'SELECT coalesce(pg_partition_root(relation), relation)';
CREATE TEMPORARY TABLE undo_tables (relation regclass, changes bigint, events int) ON COMMIT DROP;
INSERT INTO undo_tables VALUES
{expected};
CREATE TEMPORARY TABLE undo_before ON COMMIT DROP AS
SELECT relid, n_tup_upd + n_tup_del AS changes FROM pg_catalog.pg_stat_xact_user_tables;

-- The triggers of these tables that are disabled until the end. Those of foreign keys are PostgreSQL's own, and stay.
CREATE TEMPORARY TABLE undo_disabled ON COMMIT DROP AS
SELECT tgrelid::regclass AS relation, tgname AS name, tgenabled::text AS enabled,
  (SELECT count(*) FROM pg_catalog.pg_partition_ancestors(tgrelid)) AS level
FROM pg_catalog.pg_trigger WHERE {disables} AND NOT tgisinternal
  AND pg_temp.undo_root(tgrelid) IN (SELECT pg_temp.undo_root(relation) FROM undo_tables);
DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT * FROM undo_disabled ORDER BY level LOOP
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER %I', c.relation, c.name);
  END LOOP;
END $$;

-- The triggers that fire: a row's BEFORE trigger may change what is restored. To move a row to another partition is to
-- delete and insert it.
CREATE FUNCTION pg_temp.undo_fires() RETURNS TABLE (name text, may_change boolean) LANGUAGE sql AS
  $$SELECT format('%I on %s (%s %s)', tgname, tgrelid::regclass,
      CASE WHEN bits & 2 <> 0 THEN 'BEFORE' ELSE 'AFTER' END, concat_ws(' OR ',
        CASE WHEN bits & 4 <> 0 THEN 'INSERT' END, CASE WHEN bits & 16 <> 0 THEN 'UPDATE' END,
        CASE WHEN bits & 8 <> 0 THEN 'DELETE' END)), bits & 3 = 3
  FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_class r ON r.oid = tgrelid, LATERAL (SELECT tgtype::int) AS k(bits)
  WHERE NOT tgisinternal AND coalesce(to_jsonb(g) ->> 'tgparentid', '0') = '0'
    AND tgenabled::text IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)
    AND EXISTS (SELECT FROM undo_tables t WHERE pg_temp.undo_root(tgrelid) = pg_temp.undo_root(t.relation) AND bits &
      CASE WHEN t.events & 16 <> 0 AND (r.relispartition OR r.relkind = 'p') THEN 28 ELSE t.events END <> 0)
  ORDER BY 1$$;
CREATE FUNCTION pg_temp.undo_triggers(only_row boolean) RETURNS text LANGUAGE sql AS
  $$SELECT coalesce('. Triggers: ' || string_agg(name, ', ') || '. Disable those that must not fire (ALTER TABLE ... '
    'DISABLE TRIGGER) after this script''s BEGIN, or make it with --disable-triggers', '')
  FROM pg_temp.undo_fires() WHERE may_change OR NOT only_row$$;
DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT * FROM pg_temp.undo_fires() LOOP
    RAISE NOTICE 'trigger % %', c.name, CASE WHEN c.may_change THEN 'may change restored rows' ELSE 'fires' END;
  END LOOP;
END $$;

-- Does the archive have every change of these tables?
DO $$ DECLARE c record; BEGIN
  IF current_setting('track_counts') <> 'on' THEN
    RAISE EXCEPTION 'nothing is undone: track_counts is off, so what triggers and cascades change is not seen';
  END IF;
  FOR c IN SELECT p.pubname, t.relation FROM undo_tables t, pg_catalog.pg_publication p
    JOIN pg_catalog.pg_publication_tables l ON l.pubname = p.pubname
    WHERE pg_temp.undo_root(format('%I.%I', l.schemaname, l.tablename)::regclass) = pg_temp.undo_root(t.relation)
      AND NOT (p.pubinsert AND p.pubupdate AND p.pubdelete)
    UNION SELECT p.pubname, t.relation FROM undo_tables t, pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE pg_temp.undo_root(r.prrelid) = pg_temp.undo_root(t.relation) AND to_jsonb(r) ->> 'prqual' IS NOT NULL
  LOOP
    RAISE EXCEPTION 'nothing is undone: publication % sends only some rows or operations of %', c.pubname, c.relation;
  END LOOP;
  FOR c IN SELECT t.relation FROM undo_tables t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relation
    JOIN pg_catalog.pg_class r ON r.oid = t.relation AND r.relkind <> 'p'
  LOOP
    RAISE EXCEPTION 'nothing is undone: other tables inherit from %', c.relation;
  END LOOP;
END $$;

-- Each step must find exactly one row, and leave what it says.
CREATE FUNCTION pg_temp.undone(rows bigint, is_restored boolean, step text) RETURNS void LANGUAGE plpgsql
  SET search_path = '' AS $$
BEGIN
  IF rows <> 1 THEN RAISE EXCEPTION 'nothing is undone: % finds % rows that are what they were%',
    step, rows, pg_temp.undo_triggers(false); END IF;
  IF NOT is_restored THEN
    RAISE EXCEPTION 'nothing is undone: a trigger changes the row of %', step || pg_temp.undo_triggers(true);
  END IF;
END $$;

-- Foreign keys between these tables are checked at the end. Other settings of a constraint stay.
CREATE TEMPORARY TABLE undo_constraints ON COMMIT DROP AS
SELECT c.conrelid::regclass AS relation, c.conname AS name FROM pg_catalog.pg_constraint c
WHERE c.contype = 'f' AND NOT c.condeferrable AND c.conparentid = 0
  AND pg_temp.undo_root(c.conrelid) IN (SELECT pg_temp.undo_root(relation) FROM undo_tables)
  AND pg_temp.undo_root(c.confrelid) IN (SELECT pg_temp.undo_root(relation) FROM undo_tables);
DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT * FROM undo_constraints LOOP
    EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE', c.relation, c.name);
  END LOOP;
END $$;
SET CONSTRAINTS ALL DEFERRED;

"""

_STEPS = r"""SELECT pg_catalog.set_config('search_path', :'caller_path', true) AS caller_path \gset

"""

_END = """
SET CONSTRAINTS ALL IMMEDIATE;
SET LOCAL search_path = '';
DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT relation::regclass FROM (
      SELECT pg_temp.undo_root(relid) AS relation, n_tup_upd + n_tup_del AS changes
        FROM pg_catalog.pg_stat_xact_user_tables WHERE schemaname !~ '^pg_temp'
      UNION ALL SELECT pg_temp.undo_root(relid), -changes FROM undo_before
      UNION ALL SELECT pg_temp.undo_root(relation), -changes FROM undo_tables
    ) AS counts GROUP BY relation HAVING sum(changes) <> 0
  LOOP
    RAISE EXCEPTION 'nothing is undone: a cascade or a trigger updates or deletes other rows of %',
      c.relation || pg_temp.undo_triggers(false);
  END LOOP;
  FOR c IN SELECT * FROM undo_disabled ORDER BY level LOOP
    EXECUTE format('ALTER TABLE %s %s TRIGGER %I', c.relation, CASE c.enabled WHEN 'O' THEN 'ENABLE'
      WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'DISABLE' END, c.name);
  END LOOP;
  FOR c IN SELECT * FROM undo_constraints LOOP
    EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I NOT DEFERRABLE', c.relation, c.name);
  END LOOP;
END $$;
DROP FUNCTION pg_temp.undone, pg_temp.undo_triggers, pg_temp.undo_fires, pg_temp.undo_root;
COMMIT;
"""


# The event of the statement that undoes an operation, as a bit of pg_trigger.tgtype: DELETE, UPDATE, INSERT.
_EVENTS = {Operation.INSERT: 8, Operation.UPDATE: 16, Operation.DELETE: 4}


@dataclass(frozen=True, slots=True)
class UndoneTable:
    """key: positions of the key's columns; empty in a table without a key. looked_up: psql variables that contain the
    operator, for positions of key columns whose type isn't built into PostgreSQL."""

    schema: str
    name: str
    columns: tuple[ComparedColumn, ...]
    key: tuple[int, ...]
    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...]
    looked_up: Mapping[int, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def place(self) -> str:
        return qualified(self.schema, self.name)

    def reverse(self, step: Step) -> str:
        """The statement that undoes a step; for each row, it returns whether the row is as expected."""
        before, after = step.before, step.after
        if before is None:
            assert after is not None
            return f"DELETE FROM {self.place} WHERE {self._is_one(after)} RETURNING true AS is_restored"
        restored = self._known(before) if after is None else _changed(before, after)
        names = [identifier(self.columns[i].name) for i in restored]
        values = [literal(before.texts[i]) for i in restored]
        if after is None:
            change = f"{insertion(self.place, names)}({', '.join(values)})"
        else:
            pairs = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
            change = f"UPDATE {self.place} SET {pairs} WHERE {self._is_one(after)}"
        return f"{change} RETURNING {self._has(before, restored)} AS is_restored"

    def _known(self, row: Row) -> list[int]:
        """Positions of known values, with the key's first."""
        return [*self.key, *(i for i in range(len(self.columns)) if i not in row.unknown and i not in self.key)]

    def _has(self, row: Row, positions: Iterable[int]) -> str:
        """A condition: the row has these values."""
        return " AND ".join(_has(self.columns[i], row.texts[i]) for i in positions)

    def _is_one(self, row: Row) -> str:
        """A condition: the row has all these values; in a table without a key, it is one of several such rows."""
        condition = self._has(row, self._known(row))
        if self.key:
            # Uses the key's index; equal values may have different texts
            key = [f"{self._equals(i)} {literal(t)}" for i in self.key if (t := row.texts[i]) is not None]
            return " AND ".join([*key, condition])
        one = f"SELECT tableoid, ctid FROM {self.place} WHERE {condition} LIMIT 1"
        return f"(tableoid, ctid) OPERATOR(pg_catalog.=) ({one})"

    def _equals(self, position: int) -> str:
        """The key column followed by its equality operator."""
        if position in self.looked_up:
            return f":{self.looked_up[position]}"
        return f"{identifier(self.columns[position].name)} OPERATOR(pg_catalog.=)"

    def lookups(self) -> Iterator[str]:
        """Queries that set the variables in looked_up."""
        relation = literal(self.place)
        for position, variable in self.looked_up.items():
            column = literal(self.columns[position].name)
            yield _lookup(relation, column, variable)

    @property
    def kept(self) -> tuple[str, ...]:
        """New columns that keep what an UPDATE set, because their former value is unknown."""
        kept = frozenset[int]().union(*(step.kept for step in self.steps))
        return tuple(self.columns[i].name for i in sorted(kept))


def _changed(before: Row, after: Row) -> list[int]:
    """Positions of the columns to restore; at least one, to make the statement an UPDATE."""
    known = [i for i in range(len(before.texts)) if i not in before.unknown]
    return [i for i in known if before.texts[i] != after.texts[i]] or known[:1]


def _has(column: ComparedColumn, text: Text) -> str:
    """Compares texts, because equal values may differ: 1.0 and 1.00."""
    name = identifier(column.name)
    if text is None:  # a composite value of NULLs IS NULL, too
        return f"{name} IS NOT DISTINCT FROM NULL"
    return f'({as_text(name)} OPERATOR(pg_catalog.=) {literal(text)} COLLATE pg_catalog."C") IS TRUE'


def _lookup(relation: str, column: str, variable: str) -> str:
    """Sets a psql variable to a key column and its index's equality operator or, failing that, to the column's text and
    the operator for texts. relation, column: literals."""
    return rf"""SELECT coalesce(min(format('%I%s OPERATOR(%I.%s)', a.attname,
    CASE WHEN t.typtype <> 'p' THEN format('::%s.%I', t.typnamespace::regnamespace, t.typname) END,
    n.nspname, o.oprname)),
  format('pg_catalog.format(''%%s'', %I) OPERATOR(pg_catalog.=)', {column})) AS {variable}
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[]) AS k(number, class)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
JOIN pg_catalog.pg_opclass c ON c.oid = k.class
JOIN pg_catalog.pg_type t ON t.oid = c.opcintype AND t.oid <> 'record'::regtype -- which has no texts
JOIN pg_catalog.pg_amop e ON e.amopfamily = c.opcfamily AND e.amopstrategy = 3
  AND e.amoplefttype = t.oid AND e.amoprighttype = t.oid
JOIN pg_catalog.pg_operator o ON o.oid = e.amopopr
JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
WHERE i.indrelid = {relation}::regclass AND a.attname = {column} AND (i.indisprimary OR i.indisreplident) \gset
"""


def script(title: str, tables: Sequence[UndoneTable], disables_triggers: bool = False) -> Iterator[str]:
    """Parts of a psql script that undoes all steps of all tables, in reverse order: each step then finds the rows and
    unique values that it left, and referencing rows are removed before the rows that they refer to. disables_triggers:
    on these tables, while the script runs."""
    named = [(step.lsn, step.sequence, table, step) for table in tables for step in table.steps]
    named.sort(key=lambda entry: entry[:2], reverse=True)
    yield "".join(f"-- {line}\n" for line in title.splitlines())
    for table in tables:
        yield from _left_out(table)
    touched = [table for table in tables if table.steps]
    if not touched:
        yield "-- There is nothing to undo.\n"
        return
    begin = _BEGIN.replace("{settings}", SCRIPT_SETTINGS).replace("{disables}", str(disables_triggers).lower())
    yield begin.replace("{expected}", ",\n".join(map(_expected, touched)))
    for table in touched:
        yield from table.lookups()
    yield _STEPS
    for number, (_, _, table, step) in enumerate(named, 1):
        about = literal(f"step {number}, {table.full_name}")
        checked = (
            f"SELECT pg_temp.undone(pg_catalog.count(*), pg_catalog.bool_and(is_restored), {about}) AS undone FROM s"
        )
        yield f"WITH s AS ({table.reverse(step)}) {checked} \\gset\n"
    yield _END


def _expected(table: UndoneTable) -> str:
    """A row of undo_tables: the number of the script's UPDATEs and DELETEs, and the events of its steps, as bits of
    pg_trigger.tgtype."""
    changes = sum(step.operation is not Operation.DELETE for step in table.steps)
    events = sum({_EVENTS[step.operation] for step in table.steps})
    return f"({literal(table.place)}::regclass, {changes}, {events})"


def _left_out(table: UndoneTable) -> Iterator[str]:
    """Comments that list the rows that are not restored."""
    for conflict in table.conflicts:
        keys = ", ".join(_one_line(f"({', '.join(map(literal, key))})") for key in conflict.keys)
        why = f"changed again by {', '.join(map(str, conflict.xids))}" if conflict.xids else "a value is not known"
        yield f"-- Not undone: {_one_line(table.place)} {keys}: {why}\n"


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
