"""The schema changes in an archive according to its catalog Messages, in commit order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pgoutput_etl.inspection.archive import Inspection, Runner
from pgoutput_etl.inspection.file_scan import catalog_messages
from pgoutput_etl.inspection.message_lines import MessageFilter, MessageLine, as_lsn, as_time
from pgoutput_etl.schema.definition_changes import changed_definitions
from pgoutput_etl.types import UserTypes


@dataclass(frozen=True, slots=True)
class SchemaCommand:
    """A command's effect on a table. changes: each as a sentence."""

    commit_time: str | None
    xid: int | None
    commit_lsn: str | None
    command: str
    oid: int
    schema: str
    table: str
    changes: tuple[str, ...]


def schema_commands(
    inspection: Inspection, runner: Runner, wanted: MessageFilter, shows_values: bool
) -> list[SchemaCommand]:
    """The commands of committed transactions, each once. wanted: selects by the names of tables and columns."""
    assembly = inspection.assembled.assembly
    entries = assembly.relations.definitions.added
    if not entries:
        return []
    transactions = runner.query(partial(catalog_messages, statuses=inspection.assembled.statuses()))
    commands = []
    for entry, changes in changed_definitions(entries, UserTypes.of(assembly.types.values(), {})):
        (file, ordinal), definition = entry.position, entry.definition
        if ordinal not in transactions.get(file, {}):
            continue
        xid, lsn, time = transactions[file][ordinal]
        tables = {known.full_name for known in (definition, entry.before) if known is not None}
        columns = (change.change.column for change in changes)
        line = MessageLine("", 0, None, xid, None, "Message", "", None, tuple(tables), (*tables, *columns), lsn, time)
        if wanted.accepts(line):
            texts = tuple(change.text(shows_values) for change in changes)
            of_table = (definition.oid, definition.namespace, definition.name, texts)
            commands.append(SchemaCommand(as_time(time), xid, as_lsn(lsn), entry.command, *of_table))
    return commands
