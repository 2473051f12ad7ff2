"""The schema changes that inspect lists: by catalog Messages, of committed transactions, each once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.inspection.archive import inspect_archive
from pgoutput_etl.inspection.local_runner import LocalRunner, list_local
from pgoutput_etl.inspection.message_lines import MessageFilter
from pgoutput_etl.inspection.schema_changes import SchemaCommand, schema_commands
from pgoutput_etl.jobs.command import OutputOptions
from pgoutput_etl.jobs.inspect import InspectRequest, run
from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.protocol.messages import Begin, BeginPrepare, Message, PgoutputMessage, StreamStart
from tests.support.small_archives import (
    Messages,
    commit_prepared,
    copydata,
    prepared,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    transaction,
)

A, B, C = ({"number": n, "name": name, "type": 23, "modifier": -1} for n, name in ((1, "a"), (2, "b"), (3, "c")))
TEXT = {**B, "type": 25}
MOOD = {"number": 2, "name": "m", "type": 16500, "modifier": -1}


def sent(*columns: dict[str, Any], xid: int = 700, command: str = "ALTER TABLE", **fields: object) -> Message:
    """The definition of table t."""
    table = {"oid": 16400, "schema": "public", "name": "t", "columns": columns} | fields
    return of_body({"command": command, "xid": xid, "tables": [table]})


def of_body(body: dict[str, object]) -> Message:
    return Message(None, True, 0, PREFIX, b"0" * 64 + json.dumps({"version": 1, **body}).encode())


def numbered(messages: Iterable[PgoutputMessage], known: dict[int, Message]) -> Iterator[PgoutputMessage]:
    """The catalog Messages with their transaction's xid, and with numbers in the order in which they are first sent.
    known: those that have numbers."""
    xid = 0
    for message in messages:
        if isinstance(message, (Begin, StreamStart, BeginPrepare)):
            xid = message.xid
        if isinstance(message, Message) and id(message) not in known:
            body = json.loads(message.content[64:])
            body |= {"transaction": (3 << 32) + xid, "number": len(known) + 1}
            known[id(message)] = replace(message, content=b"0" * 64 + json.dumps(body).encode())
        yield known[id(message)] if isinstance(message, Message) else message


def listed(
    folder: Path, *files: Iterable[Any], values: bool = False, wanted: MessageFilter | None = None
) -> list[SchemaCommand]:
    known: dict[int, Message] = {}
    for number, messages in enumerate(files):
        (folder / f"{number:03}.copydata").write_bytes(copydata(numbered(messages, known)))
    work = folder / "work"
    work.mkdir()
    with LocalRunner(work) as runner:
        inspection = inspect_archive(list_local([str(folder / "*.copydata")]), runner, lambda _: None)
        return schema_commands(inspection, runner, wanted or MessageFilter(), values)


FIRST = transaction(1, 10, sent(A, B, command="send_catalog"))


def changes(folder: Path, *messages: Message, values: bool = False) -> list[str]:
    """Of one transaction after the first definition."""
    commands = listed(folder, [*FIRST, *transaction(2, 20, *messages)], values=values)
    return [change for command in commands for change in command.changes]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([sent(A, B, C)], ["column added: c (int4)"]),
        ([sent(A)], ["column dropped: b"]),
        ([sent(A, {**C, "name": "b"})], ["column dropped: b", "column added: b (int4)"]),
        ([sent(A, {**B, "name": "x"})], ["column renamed: x (was b)"]),
        ([sent(A, TEXT)], ["column retyped: b (int4 to text)"]),
        ([sent(A, B, name="u")], ["table renamed (was public.t)"]),
        ([sent(A, B)], []),
        (
            [of_body({"command": "ALTER TABLE", "xid": 2, "rewritten": {"oid": 16400, "is_cast": False}})],
            ["values computed anew"],
        ),
        (
            [of_body({"command": "ALTER TABLE", "xid": 2, "rewritten": {"oid": 16400, "is_cast": True}})],
            ["values cast"],
        ),
        ([of_body({"command": "DROP TABLE", "xid": 2, "dropped": [16400]})], ["table dropped"]),
        ([of_body({"command": "ALTER TABLE", "xid": 2, "unknown": "55P03"})], ["definition unknown"]),
        ([sent(A, oid=16401, name="u", command="CREATE TABLE")], ["table created (a int4)"]),
        ([sent(A, oid=16401, name="u")], ["table described (a int4)"]),
    ],
)
def test_a_change_is_named(tmp_path: Path, messages: list[Message], expected: list[str]) -> None:
    assert changes(tmp_path, *messages) == expected


@pytest.mark.parametrize("shows_values", [False, True])
def test_defaults_and_labels_are_values(tmp_path: Path, shows_values: bool) -> None:
    red, renamed = ({**MOOD, "form": {"labels": [[9, label]]}} for label in ("red", "crimson"))
    defined = (A, renamed, {**C, "initial": "secret"})
    commented = [sent({**A, "comment": "private"}, *defined[1:]), sent(*defined, comment="internal")]
    commands = [sent(A, red), sent(A, renamed), sent(*defined), *commented]
    text = "; ".join(changes(tmp_path, *commands, values=shows_values))
    assert "type changed: m (labels)" in text
    assert "existing rows got a default: c" in text
    assert "comment changed: a" in text
    assert [value in text for value in ("red to crimson", "secret", "private", "internal")] == [shows_values] * 4


def test_a_transaction_that_does_not_count_changes_nothing(tmp_path: Path) -> None:
    undone = [*segment(3, sent(A, xid=4), sent(A, C, xid=3), first=True), *stream_abort(3, 4), *stream_commit(3, 30)]
    aborted = [*segment(5, sent(A, xid=5), first=True), *stream_abort(5)]
    rolled_back = [*prepared(6, sent(A, xid=6)), *rollback_prepared(6)]
    is_open = prepared(7, sent(A, xid=7), lsn=35)
    commands = listed(tmp_path, FIRST, [*undone, *aborted], [*rolled_back, *is_open])
    assert [(c.xid, c.commit_lsn, c.changes) for c in commands] == [
        (3, "0/1E", ("column dropped: b", "column added: c (int4)"))
    ]


def test_a_prepared_transaction_counts_when_it_commits(tmp_path: Path) -> None:
    before: Messages = prepared(2, sent(A, xid=2), lsn=15)
    after = [*transaction(3, 20, sent(A, B, C, oid=16401, name="u")), *commit_prepared(2, 30)]
    commands = listed(tmp_path, FIRST, before, after)
    assert [(c.xid, c.commit_lsn, c.table) for c in commands] == [(3, "0/14", "u"), (2, "0/1E", "t")]


def test_a_resent_change_is_listed_once(tmp_path: Path) -> None:
    again = transaction(2, 20, sent(A))
    commands = listed(tmp_path, [*FIRST, *again], [*again, *transaction(3, 30, sent(A, C))])
    assert [c.changes for c in commands] == [("column dropped: b",), ("column added: c (int4)",)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (MessageFilter(tables=("public.u",)), [3]),
        (MessageFilter(tables=("*.t",)), [2, 3]),  # under its former name, too
        (MessageFilter(xid=2), [2]),
        (MessageFilter(first_lsn=25), [3]),
        (MessageFilter(names="^c$"), [2]),
    ],
)
def test_filters(tmp_path: Path, wanted: MessageFilter, expected: list[int]) -> None:
    archive = [*FIRST, *transaction(2, 20, sent(A, B, C)), *transaction(3, 30, sent(A, B, C, name="u"))]
    assert [c.xid for c in listed(tmp_path, archive, wanted=wanted)] == expected


def test_the_job_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "0.copydata"
    path.write_bytes(copydata(numbered([*FIRST, *transaction(2, 20, sent(A, B, C))], {})))
    request = InspectRequest((str(path),), ddl=True)
    assert run(request, OutputOptions(quiet=True)) == 0
    assert "column added: c" in capsys.readouterr().out
    assert run(request, OutputOptions(json=True, quiet=True)) == 0
    [command] = json.loads(capsys.readouterr().out)
    assert (command["command"], command["xid"], command["commit_time"]) == (
        "ALTER TABLE",
        2,
        "2000-01-01 00:00:00+00:00",
    )
    path.write_bytes(copydata(numbered(FIRST, {})))
    run(request, OutputOptions(quiet=True))
    assert "No catalog Message shows a schema change." in capsys.readouterr().out
    with pytest.raises(ConfigError, match="can't be combined"):
        run(InspectRequest((str(path),), ddl=True, messages=True), OutputOptions())
