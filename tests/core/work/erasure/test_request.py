"""What to erase, as a YAML file says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.work.erasure.request import ForgetRequest, read_erasure
from pgoutput_etl.work.snapshot.request import RowFormat

ONE = "tables: [{table: public.t, keys: [{id: 1}]}]\nsnapshots: "

HEAD = "requested_by: dpo\nreference: R-1\n"


def written(folder: Path, text: str) -> str:
    path = folder / "erasure.yaml"
    path.write_text(HEAD + text)
    return str(path)


def test_keys_conditions_and_messages(tmp_path: Path) -> None:
    erasure = read_erasure(
        written(
            tmp_path,
            "tables:\n"
            "  - {table: public.t, keys: [{id: 30}, {id: 31, part: true}]}\n"
            "  - {table: public.u, where: {email: ada@example.org, since: 2026-11-20}}\n"
            "messages: [{prefix: audit, contains: ada@}, {contains: Lovelace}]\n"
            "search: [Byron]\n"
            "snapshots: [{table: public.t, csv: rows}, {table: public.u, copy: a, columns: [id], lsn: 1/2F}]\n",
        )
    )
    t, u = erasure.tables
    assert (t.name, t.conditions) == ("public.t", ((("id", "30"),), (("id", "31"), ("part", "t"))))
    assert u.conditions == ((("email", "ada@example.org"), ("since", "2026-11-20")),)
    assert erasure.texts == ("Byron", "ada@example.org", "2026-11-20", "ada@", "Lovelace")
    assert [(s.table, s.path, s.format, s.columns, s.lsn) for s in erasure.snapshots] == [
        ("public.t", "rows", RowFormat.CSV, (), None),
        ("public.u", "a", RowFormat.BINARY, ("id",), (1 << 32) + 0x2F),
    ]
    bodies = {b"ada@x": True, b"Lovelace": True, b"Bob": False}
    assert {body: erasure.is_chosen(Message(None, False, 1, "audit", body)) for body in bodies} == bodies
    assert not erasure.is_chosen(Message(None, False, 1, "other", b"ada@x"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expected tables or messages to erase"),
        ("tables: [{table: public.t}]", r"tables\[0\]: expected keys, or where"),
        ("tables: [{table: public.t, keys: [{}]}]", r"tables\[0\]\.keys\[0\]: expected columns with their values"),
        (
            "tables: [{table: public.t, keys: [{id: secret, a: null}]}]",
            r"keys\[0\]: expected columns with their values",
        ),
        ("tables: [{table: public.t, keys: [{id: [secret]}]}]", r"keys\[0\]\.id: expected a string, a number"),
        ("messages: [{prefix: audit}]", r"messages\[0\]\.contains: missing: expected a string"),
        (
            "tables: [{table: public.t, keys: [{id: 1}]}]\nsnapshots: [{table: x, csv: a}]",
            "a table that is among tables",
        ),
        (
            f"{ONE}[{{table: public.t, csv: a, lsn: 12}}]",
            r"snapshots\[0\]\.lsn: expected a string .*: the snapshot's LSN",
        ),
        (f"{ONE}[{{table: public.t, csv: a, lsn: x}}]", r"snapshots\[0\]\.lsn: not an LSN"),
        (f"{ONE}[{{table: public.t}}]", r"snapshots\[0\]: expected one of csv, copy, and dump"),
        (f"{ONE}[{{table: public.t, csv: a, dump: b}}]", r"snapshots\[0\]: expected one of csv, copy, and dump"),
        (f"{ONE}[{{table: public.t, csv: a, columns: [id]}}]", "columns: expected only with copy"),
        ("table: []", "unknown key 'table'; did you mean 'tables'"),
    ],
)
def test_mistakes_are_named_without_values(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        read_erasure(written(tmp_path, text))
    assert "secret" not in str(raised.value)


def test_a_proof_comes_afterwards(tmp_path: Path) -> None:
    path = written(tmp_path, "messages: [{contains: Lovelace}]")
    ForgetRequest(path, prove=True).check()
    with pytest.raises(ConfigError, match="--prove: expected without --execute"):
        ForgetRequest(path, execute=True, prove=True).check()
