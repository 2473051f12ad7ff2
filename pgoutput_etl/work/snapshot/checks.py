"""Checks a server, a slot, and an archive before an initial load, without Spark.

Rows and archive fit together if the slot existed when the rows were read: then every commit is in one of them. A slot
doesn't store where it began, but it began at or before its confirmed LSN, and at or before the archive's first commit.
Rows as of one of these LSNs or later are therefore safe, and so are rows as of the LSN that creating the slot returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import unmatched
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.postgres.queries import identifier, qualified
from pgoutput_etl.postgres.sender_settings import unsuitable_settings
from pgoutput_etl.postgres.source_server import ReplicationSlot, SourceServer, SourceTable
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.schema.partitions import check_identities, of_columns, own_key
from pgoutput_etl.targets.condition import named
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.steps import DEFAULT_NAME, Commands, LoadStep

OK, NOTE, PROBLEM = "ok", "note", "problem"

_NAMED = 5  # tables to name in one line


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the checklist. status: ok, note, or problem. loses_rows: a load would lose rows. steps: solve the
    problem."""

    status: str
    subject: str
    text: str
    steps: tuple[LoadStep, ...] = ()
    loses_rows: bool = False


def order_problem(
    lsn: int, slot_lsn: int | None, confirmed: int | None, applied: CommitRange | None, apply: str
) -> str | None:
    """The reason why rows as of an LSN may be older than the slot, or None. slot_lsn: returned when the slot was
    created; confirmed: by its receiver. applied: the archive's commits. apply: the command that applies files."""
    if slot_lsn is not None:
        if lsn >= slot_lsn:
            return None
        return (
            f"the rows are as of LSN {format_lsn(lsn)}, but the slot was created later, at {format_lsn(slot_lsn)}: "
            "commits in between are in neither. Take the rows again"
        )
    known = [] if confirmed is None else [confirmed]
    known += [] if applied is None else [applied.first]
    if any(lsn >= at for at in known):
        return None
    if not known:
        return (
            f"nothing shows that the slot existed at LSN {format_lsn(lsn)}, when the rows were taken; commits between "
            "the rows and the slot's creation would be lost. Pass the LSN that the slot's creation returned as "
            f"--slot-lsn, or apply what has landed first: {apply}"
        )
    return (
        f"the rows are as of LSN {format_lsn(lsn)}, and the archive is known to have all commits only from "
        f"{format_lsn(min(known))} on: those in between would be lost. Take the rows again, now that the slot exists, "
        "or prove that it existed: pass the LSN that its creation returned as --slot-lsn"
    )


@dataclass(frozen=True, slots=True)
class Checklist:
    """applied: from the archive's first to its last applied commit; None if there are none. commands: for the same
    request."""

    server: SourceServer
    request: SnapshotRequest
    applied: CommitRange | None
    commands: Commands

    def run(self) -> tuple[Check, ...]:
        server = (self._settings(), self._user(), self._sender_settings())
        parts = (*server, self._publications(), self._tables(), self._slot(), self._position())
        return tuple(check for part in parts for check in part)

    def of_verify(self) -> Iterator[Check]:
        """Checks a server whose rows are to be compared. A standby's snapshot takes no slot."""
        server = self.server
        release, kind = server.version // 10_000, "standby" if server.is_standby else "primary"
        yield Check(OK, "server", f"PostgreSQL {release}, database {server.database}, a {kind}")
        if not server.is_standby:
            yield self._wal_level()
            yield self._capacity("max_replication_slots", server.max_slots, len(server.slots), 1)
            yield self._capacity("max_wal_senders", server.max_senders, server.senders, 1)
            yield from self._user()
        yield from (replace(check, loses_rows=False) for check in self._readable(self.published))

    @property
    def wanted(self) -> list[SourceTable]:
        rule_for = self.commands.config.rule_for
        return [t for t in self.server.tables if self.request.wants(t.name) and not rule_for(t.schema, t.table).skip]

    @property
    def published(self) -> list[SourceTable]:
        return [table for table in self.wanted if table.published_by(self.request.publications)]

    @property
    def publications(self) -> tuple[str, ...]:
        """The requested publications; otherwise every one that has a wanted table."""
        containing = {part["name"] for table in self.published for part in table.publications}
        return self.request.publications or tuple(sorted(containing))

    @property
    def slots(self) -> list[ReplicationSlot]:
        """The named slot; otherwise every permanent pgoutput slot of the database that isn't lost; otherwise the lost
        ones."""
        slots = self.server.slots
        if self.request.slot is not None:
            return [slot for slot in slots if slot.name == self.request.slot]
        usable = [s for s in slots if s.plugin == "pgoutput" and self._is_here(s) and not s.is_temporary]
        return [slot for slot in usable if slot.why_lost is None] or usable

    def _is_here(self, slot: ReplicationSlot) -> bool:
        return slot.database == self.server.database

    def _settings(self) -> Iterator[Check]:
        server = self.server
        release = server.version // 10_000
        text = f"PostgreSQL {release}, database {server.database}, WAL ends at {format_lsn(server.lsn)}"
        if server.is_standby:
            yield Check(PROBLEM, "server", f"{text}. It is a standby: use the primary, which exports snapshots")
        else:
            yield Check(OK, "server", text)
        yield self._wal_level()
        has_slot = bool(self.slots)
        is_received = any(slot.is_active for slot in self.slots)
        yield self._capacity("max_replication_slots", server.max_slots, len(server.slots), 1 + (not has_slot))
        yield self._capacity("max_wal_senders", server.max_senders, server.senders, 1 + (not is_received))

    def _wal_level(self) -> Check:
        level = self.server.wal_level
        if level == "logical":
            return Check(OK, "wal_level", level)
        alter = "ALTER SYSTEM SET wal_level = 'logical'"
        step = self.commands.as_superuser("set wal_level, then restart the server", alter, is_setting=True)
        return Check(PROBLEM, "wal_level", f"{level}: logical decoding needs logical", (step,))

    def _capacity(self, setting: str, limit: int, used: int, needed: int) -> Check:
        text = f"{used:,} of {limit:,} in use"
        if used + needed <= limit:
            return Check(OK, setting, text)
        alter = f"ALTER SYSTEM SET {setting} = {used + needed + 5:d}"
        step = self.commands.as_superuser("raise the limit, then restart the server", alter, is_setting=True)
        return Check(PROBLEM, setting, f"{text}; the load needs {needed:,} more", (step,))

    def _user(self) -> Iterator[Check]:
        user = self.server.user
        if self.server.may_replicate:
            yield Check(OK, "user", f"{user} has REPLICATION")
            return
        alter = f"ALTER ROLE {identifier(user)} REPLICATION"
        step = self.commands.as_superuser("let the user create slots, as a superuser", alter)
        yield Check(PROBLEM, "user", f"{user} lacks REPLICATION, so it can't export a snapshot", (step,))

    def _sender_settings(self) -> Iterator[Check]:
        """Only notes, because the receiver's environment may override these settings."""
        database = self.server.database
        for role, settings in sorted(self.server.sender_settings.items()):
            for found in unsuitable_settings(settings, self.server.version, self.server.encoding):
                text = (
                    f"{found.name} is {found.value!r} for {role} in {database}: unless the receiver's PGOPTIONS or "
                    f"PGCLIENTENCODING says otherwise, {found.harm}"
                )
                alter = f"ALTER ROLE {identifier(role)} IN DATABASE {identifier(database)} SET {found.name}"
                step = self.commands.as_superuser(
                    "let the receiver's role print values as decoding expects them, then restart the receiver",
                    f"{alter} = {found.suitable}",
                )
                yield Check(NOTE, "sender settings", text, (step,))

    def _publications(self) -> Iterator[Check]:
        existing = {publication.name: publication for publication in self.server.publications}
        names = self.publications or tuple(existing)
        missing = [name for name in self.request.publications if name not in existing] or (
            [] if names else [DEFAULT_NAME]
        )
        for name in missing:
            yield Check(PROBLEM, "publication", f"{name} does not exist", self._publication_steps(name))
        for name in names:
            if name not in existing:
                continue
            omitted = existing[name].omitted
            if omitted:
                text = f"{name} does not publish {', '.join(omitted)}: tables keep what the server changes that way"
                yield Check(NOTE, "publication", text)
            else:
                yield Check(OK, "publication", name)

    def _publication_steps(self, name: str) -> tuple[LoadStep, ...]:
        """Empty if the server has none of the chosen tables. An existing slot can't decode, or omits, changes from
        before its publication existed, so the slot is recreated."""
        tables = [t for t in self.wanted if t.is_logged and not t.is_partition]
        every = [t for t in self.server.tables if t.is_logged and not t.is_partition]
        if every and not tables:
            return ()
        content = "ALL TABLES" if tables == every else f"TABLE {', '.join(map(_sql_name, tables))}"
        create = self.commands.as_superuser(
            "create the publication, as a superuser or the tables' owner",
            f"CREATE PUBLICATION {identifier(name)} FOR {content}",
        )
        unused = [slot for slot in self.slots if self.applied is None and not slot.is_active]
        again = [
            LoadStep("create the slot again: it began before its publication", command)
            for slot in unused
            for command in (self.commands.drop_slot(slot.name), self.commands.create_slot(slot.name))
        ]
        return (create, *again)

    def _tables(self) -> Iterator[Check]:
        for pattern in unmatched(self.request.tables, [table.name for table in self.server.tables]):
            yield Check(PROBLEM, "tables", f"the server has no table {pattern!r}")
        published = self.published
        names = {table.name for table in published}
        others = [t for t in self.wanted if t.name not in names and not t.is_root and not t.is_partition]
        unlogged = [table for table in others if not table.is_logged]
        if unlogged:
            yield Check(NOTE, "tables", f"unlogged, so not replicated: {_names(unlogged)}")
        missing = [table for table in others if table.is_logged]
        if missing and self.server.publications:
            name = (self.request.publications or (self.server.publications[0].name,))[0]
            add = f"ALTER PUBLICATION {identifier(name)} ADD TABLE {', '.join(map(_sql_name, missing))}"
            step = self.commands.as_superuser("publish these tables, or leave them out of --tables", add)
            yield Check(PROBLEM, "tables", f"in no publication, so not loaded: {_names(missing)}", (step,))
        if published:
            yield Check(OK, "tables", f"published: {_names(published)}")
        yield from self._readable(published)
        yield from self._identities(published)
        yield from self._unsent_keys(published)
        yield from self._partition_identities(published)
        yield from self._contents(published)

    def _readable(self, tables: Sequence[SourceTable]) -> Iterator[Check]:
        user = identifier(self.server.user)
        denied = [table for table in tables if not table.may_select]
        if denied:
            schemas = ", ".join(sorted({identifier(table.schema) for table in denied}))
            names = ", ".join(map(_sql_name, denied))
            grant = f"GRANT USAGE ON SCHEMA {schemas} TO {user}; GRANT SELECT ON {names} TO {user}"
            step = self.commands.as_superuser("let the user read the tables", grant)
            yield Check(PROBLEM, "SELECT", f"denied on {_names(denied)}", (step,))
        hidden = [table for table in tables if table.rows_hidden]
        if hidden:
            alter = f"ALTER ROLE {user} BYPASSRLS"
            step = self.commands.as_superuser("let the user read all rows, as a superuser", alter)
            text = f"row-level security may hide rows of {_names(hidden)} from {self.server.user}"
            yield Check(PROBLEM, "SELECT", text, (step,), loses_rows=True)

    def _identities(self, tables: Sequence[SourceTable]) -> Iterator[Check]:
        rejected = [table for table in tables if not table.is_root and table.is_keyless]
        if rejected:
            steps = tuple(
                self.commands.as_superuser(
                    "give the table a primary key, or publish whole rows",
                    f"ALTER TABLE {_sql_name(t)} REPLICA IDENTITY FULL",
                )
                for t in rejected
            )
            text = f"PostgreSQL rejects UPDATE and DELETE of {_names(rejected)}: no primary key or REPLICA IDENTITY"
            yield Check(PROBLEM, "replica identity", text, steps)
        full = [table for table in tables if table.identity == "f"]
        if full:
            yield Check(NOTE, "replica identity", f"FULL, so rows are matched by all their values: {_names(full)}")

    def _unsent_keys(self, tables: Sequence[SourceTable]) -> Iterator[Check]:
        """Before PostgreSQL 18, UPDATE and DELETE are allowed with a key of generated columns, which are not sent."""
        for table in (table for table in tables if table.described):
            parts = table.published_by(self.request.publications)
            sent = [set(table.columns if p["columns"] is None else p["columns"]) for p in parts]
            unsent = set(own_key(table.described[0])).difference(*sent)
            if unsent:
                names = ", ".join(sorted(unsent))
                text = (
                    f"{table.name} is held at its first UPDATE or DELETE: {names} of its key is not sent, because it "
                    "is generated, or no column list has it. Publish it, or set REPLICA IDENTITY USING INDEX with a "
                    "unique index on columns that are sent"
                )
                yield Check(PROBLEM, "replica identity", text)

    def _partition_identities(self, tables: Sequence[SourceTable]) -> Iterator[Check]:
        """If the root is published, an old tuple has the columns of the partition's replica identity."""
        for root, *others in (table.described for table in tables if table.described):
            partitions = of_columns(others, root)
            try:
                check_identities(root, self._key_of(root), partitions)
            except TableError as error:
                full = ReplicaIdentity.FULL
                lacking = (qualified(p.namespace, p.name) for p in partitions if p.replica_identity is not full)
                alter = "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in lacking)
                step = self.commands.as_superuser(
                    "let the partitions publish whole rows, or configure a key that they have", alter
                )
                yield Check(PROBLEM, "partitions", str(error), (step,))

    def _key_of(self, relation: Relation) -> tuple[str, ...]:
        """The table's key, empty for a bag."""
        configured = self.commands.config.rule_for(relation.namespace, relation.name).key
        return own_key(relation) if configured is None else configured

    def _contents(self, tables: Sequence[SourceTable]) -> Iterator[Check]:
        chosen = [(table, table.published_by(self.request.publications)) for table in tables]
        filtered = [table for table, parts in chosen if any(part["filter"] for part in parts)]
        if filtered:
            yield Check(NOTE, "row filter", f"only rows that pass it are loaded and replicated: {_names(filtered)}")
        listed = [
            t for t, parts in chosen if any(p["columns"] is not None and {*t.columns} - {*p["columns"]} for p in parts)
        ]
        if listed:
            yield Check(NOTE, "column list", f"only some columns are loaded and replicated: {_names(listed)}")
        roots = [table for table in tables if table.is_root]
        if roots:
            text = f"partitions become one table: {_names(roots)}. Detached or dropped partitions keep their rows there"
            yield Check(NOTE, "partitions", text)

    def _slot(self) -> Iterator[Check]:
        slots = self.slots
        if not slots:
            name = self.request.slot or DEFAULT_NAME
            found = (
                f"{name} does not exist"
                if self.request.slot
                else f"database {self.server.database} has no pgoutput slot"
            )
            step = LoadStep("create the slot; its archive begins here", self.commands.create_slot(name))
            text = f"{found}: commits after the snapshot would be in no archive"
            yield Check(PROBLEM, "slot", text, (step,), loses_rows=True)
        for slot in slots:
            yield self._slot_state(slot)
        if len(slots) > 1:
            yield Check(NOTE, "slot", f"{len(slots):,} may be the receiver's: name it with --slot")

    def _slot_state(self, slot: ReplicationSlot) -> Check:
        name, problem = slot.name, None
        if slot.plugin != "pgoutput":
            problem = f"{name} has the plugin {slot.plugin or 'of a physical slot'}, not pgoutput"
        elif not self._is_here(slot):
            problem = f"{name} is a slot of database {slot.database}"
        elif slot.is_temporary:
            problem = f"{name} is temporary, so it ends with its session"
        elif slot.why_lost is not None:
            problem = f"{name} is lost ({slot.why_lost}): the server no longer has commits that its receiver needs"
        if problem is None:
            confirmed = "" if slot.confirmed is None else f", confirmed through {format_lsn(slot.confirmed)}"
            receiver = "its receiver is connected" if slot.is_active else "no receiver is connected"
            return Check(OK, "slot", f"{name}{confirmed}; {receiver}")
        drop, create = self.commands.drop_slot(name), self.commands.create_slot(name)
        steps: tuple[LoadStep, ...] = ()
        if slot.why_lost is not None:
            steps = (
                LoadStep("drop the slot", drop),
                LoadStep("create it again; land into another folder, as another source", create),
            )
        return Check(PROBLEM, "slot", problem, steps, loses_rows=True)

    def _position(self) -> Iterator[Check]:
        server, lsn, applied = self.server, self.request.lsn, self.applied
        if applied is not None and applied.last > server.lsn:
            text = (
                f"the server's WAL ends at {format_lsn(server.lsn)}, before the archive's last commit at "
                f"{format_lsn(applied.last)}: this is not the server of the archive, or it was restored"
            )
            yield Check(PROBLEM, "archive", text, loses_rows=True)
            return
        if applied is not None:
            yield Check(OK, "archive", f"applied through {format_lsn(applied.last)}")
        if lsn is None:
            return
        if lsn > server.lsn:
            text = f"LSN {format_lsn(lsn)} is after the end of the server's WAL: the rows are from another server"
            yield Check(PROBLEM, "snapshot LSN", text, loses_rows=True)
            return
        confirmed = max((slot.confirmed for slot in self.slots if slot.confirmed is not None), default=None)
        problem = order_problem(lsn, self.request.slot_lsn, confirmed, applied, self.commands.apply().command)
        if problem is None:
            yield Check(OK, "snapshot LSN", f"{format_lsn(lsn)} is not before the slot's beginning")
        else:
            yield Check(PROBLEM, "snapshot LSN", problem, loses_rows=True)


def _names(tables: Iterable[SourceTable]) -> str:
    return named([table.name for table in tables], _NAMED)


def _sql_name(table: SourceTable) -> str:
    return qualified(table.schema, table.table)
