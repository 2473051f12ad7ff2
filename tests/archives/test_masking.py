"""Every column of real archives, text and binary, is hashed: equal to the hash of the text that the server printed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.captures import CAPTURES, NEVER_SENT_VALUES, files_of, ignored_columns, truth_tables
from tests.support.protected_replay import as_sent, config_with, hashed, protected_replay
from tests.support.truth import read_csv

# Its columns are renamed, retyped, and filled by defaults; other tests cover hashes of such columns.
CHANGED = {"public.evo"}
SLOTS = [
    "pg16/v1",
    "pg16/v1_binary",
    "pg16/v4_twophase_parallel_binary",
    *(pytest.param(slot, marks=pytest.mark.soak) for slot in ("pg10/v1", "pg14/v1_binary", "pg14/v2_stream")),
]


@pytest.mark.parametrize("slot", SLOTS)
def test_hashes_are_of_the_texts_that_the_server_printed(slot: str, tmp_path: Path) -> None:
    server = slot.partition("/")[0]
    files = [path.read_bytes() for path in files_of(CAPTURES / slot)]
    sent = as_sent(files)
    described, holders = sent.assembly.relations, sent.name_holders()
    truths = [t for t in truth_tables(CAPTURES / server / "truth") if t.full_name not in {*CHANGED, *NEVER_SENT_VALUES}]
    columns: dict[str, dict[str, dict[str, str]]] = {}
    for table in truths:
        versions, _ = described.unmasked(holders[table.schema, table.name])
        for relation in versions.relations:  # under all names that the table had
            rule = columns.setdefault(f"{relation.namespace}.{relation.name}", {})
            rule |= {column.name: {"hash": "sha256"} for column in relation.columns}
    rules = [{"match": name, "columns": rule} for name, rule in columns.items()]
    replay = protected_replay(config_with(tmp_path, json.dumps(rules)), files)
    holders = replay.name_holders()
    tables = replay.tables()
    compared = 0
    for table in truths:
        header, expected = read_csv(table.truth)
        names = [name for name in header if name not in ignored_columns(server)]
        rows = tables[oid].rows if (oid := holders[table.schema, table.name]) in tables else []
        want = Counter(
            tuple(None if text is None else hashed(text) for n, text in zip(header, row, strict=True) if n in names)
            for row in expected
        )
        have = Counter(tuple(row[name] for name in names) for row in rows)
        assert have == want, table.full_name
        compared += want.total()
    assert compared > 1000
