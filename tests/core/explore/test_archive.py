"""read_archive's frames, compared with the inspection's report and the replay of the same files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.explore.archive import Archive, read_archive
from pgoutput_etl.explore.archive_rows import change_batches
from pgoutput_etl.explore.table_rows import RowQuery, table_batches
from pgoutput_etl.protocol.messages import Begin, ReplicaIdentity
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.support.captures import DATA, files_of
from tests.support.kept_rows import NOTES, applied, counted
from tests.support.replays import replay_of_slot
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

ROOT = Path(__file__).parents[3]
SLOTS = [
    "random16/v2",
    *(pytest.param(slot, marks=pytest.mark.soak) for slot in ("pg14/v2_stream", "pg16/v3_twophase")),
]
INT4, NUMERIC, TIMESTAMPTZ = 23, 1700, 1184


def landed(folder: Path, *files: Messages) -> Archive:
    for number, messages in enumerate(files):
        (folder / f"{number:03}.copydata").write_bytes(copydata(messages))
    return read_archive(folder)


def rows_of(archive: Archive, name: str, fate: TransactionStatus = TransactionStatus.COMMITTED) -> list[dict[str, Any]]:
    """Arrow's values, without pandas in between."""
    query = RowQuery.of_inspection(archive._view, name, None, frozenset([fate]), {})
    rows = []
    for path in archive._view.tasks:
        for batch in table_batches(path, Path(path).read_bytes(), archive._view, query):
            rows += batch.to_pylist()
    return rows


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, NOTES: dict(row[NOTES] or {})}


@pytest.fixture(params=SLOTS)
def slot(request: pytest.FixtureRequest) -> Path:
    return DATA / str(request.param)


def test_changes_and_transactions_equal_the_report(slot: Path) -> None:
    archive = read_archive(files_of(slot))
    changes, transactions, report = archive.changes, archive.transactions, archive.report

    counts = Counter(zip(changes["relation"], changes["op"], changes["fate"], strict=True))
    want: Counter[tuple[int, str, str]] = Counter()
    for relation in report.relations:
        want.update({(relation.oid, op, "committed"): n for op, n in relation.committed.items() if n})
    assert {key: n for key, n in counts.items() if key[2] == "committed"} == want
    others = Counter((oid, fate) for oid, _, fate in counts.elements() if fate != "committed")
    assert others == {(r.oid, fate): n for r in report.relations for fate, n in r.others.items()}

    assert transactions["fate"].value_counts().to_dict() == {f: n for f, n in report.transactions.items() if n}
    biggest = transactions.nlargest(10, "bytes")["bytes"].tolist()
    assert biggest == [transaction.size for transaction in report.biggest]
    is_committed = transactions["fate"] == "committed"
    assert transactions[is_committed]["changes"].sum() == sum(n for key, n in counts.items() if key[2] == "committed")


def test_messages_has_every_message(slot: Path) -> None:
    archive = read_archive(files_of(slot))
    assert len(archive.messages) == sum(archive.report.messages.values())
    assert archive.messages["file"].tolist() == sorted(archive.messages["file"])


def test_applying_a_tables_rows_gives_the_table(slot: Path) -> None:
    """Rows applied one by one (docs/modes.md) equal the replay of the same files."""
    replay, archive = replay_of_slot(slot), read_archive(files_of(slot))
    compared = 0
    for oid, want in replay.tables().items():
        names = {f"{r.namespace}.{r.name}" for r in archive._view.versions[oid].relations}
        columns = {tuple(c.name for c in r.columns) for r in archive._view.versions[oid].relations}
        bearers = [
            o for o, v in archive._view.versions.items() if any(f"{r.namespace}.{r.name}" in names for r in v.relations)
        ]
        if len(names) > 1 or len(columns) > 1 or len(bearers) > 1:
            continue  # the replay has the newest columns and names, the rows those at their position
        have = applied(rows_of(archive, min(names)), want.shape)
        assert counted(map(plain, have)) == counted(map(plain, want.rows))
        compared += 1
    assert compared >= 3


def story(folder: Path) -> Archive:
    described = table(("id", INT4), "v", ("n", NUMERIC))
    return landed(
        folder,
        transaction(1, 100, described, insert("1", "a", "1.50"), insert("2", "b", None)),
        transaction(2, 200, update("1", TOAST, "2.50")),
        transaction(3, 300, update("9", "a", "3", old_key=("1", None, None))),
        transaction(4, 400, delete("9", None, None)),
        transaction(5, 500, insert("1", "new", "0")),
        transaction(6, 600, truncate()),
    )


def test_rows_of_one_key(tmp_path: Path) -> None:
    archive = story(tmp_path)
    rows = archive.rows("public.t", {"id": 1})
    assert rows["_pg_xid"].tolist() == [1, 2, 3, 5, 6], "including the key change and the truncate"
    assert rows["_pg_op"].tolist() == ["I", "U", "U", "I", "T"]
    assert rows["_pg_unchanged"].iloc[1].tolist() == ["v"]
    assert rows["_pg_old_key"].iloc[2] == {"id": "1"}
    assert archive.rows("public.t", {"id": "1"}).equals(rows), "PostgreSQL's text matches, too"
    assert archive.rows("public.t", {"id": 9})["_pg_xid"].tolist() == [3, 4, 6]
    assert archive.rows("public.t", {"n": "2.50", "id": 1})["_pg_xid"].tolist() == [2, 6]
    assert archive.rows("public.t", {"n": None, "id": 2})["_pg_xid"].tolist() == [1, 6]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    archive = story(tmp_path)
    with pytest.raises(ConfigError, match=r"no table 'public\.u'"):
        archive.rows("public.u")
    with pytest.raises(ConfigError, match=r"public\.t has no column 'ID'"):
        archive.rows("public.t", {"ID": 1})
    with pytest.raises(ConfigError, match="'id': expected int4 as PostgreSQL's text, or a value of int32") as error:
        archive.rows("public.t", {"id": "secret"})
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="'n': expected numeric as PostgreSQL's text, or a value of string"):
        archive.rows("public.t", {"n": Decimal("2.5")})
    with pytest.raises(ConfigError, match="fate: expected one of committed, "):
        archive.rows("public.t", fate="done")
    with pytest.raises(ConfigError, match="framing: expected one of "):
        read_archive(tmp_path, framing="xml")
    with pytest.raises(ConfigError, match="s3a://lake/shop is not a local path"):
        read_archive("s3a://lake/shop")
    with pytest.raises(ConfigError, match="does not exist"):
        read_archive(tmp_path / "nothing")


def test_only_rows_has_cell_values(tmp_path: Path) -> None:
    archive = landed(tmp_path, transaction(1, 100, table(), insert("1", "secret"), update("1", "secret")))
    shown = [frame.to_csv() for frame in (archive.messages, archive.changes, archive.transactions, archive.files)]
    assert "secret" not in "".join([*shown, repr(archive), archive._repr_html_()])
    assert archive.rows("public.t")["v"].tolist() == ["secret", "secret"]


def test_aborted_and_open_transactions_are_included(tmp_path: Path) -> None:
    archive = landed(
        tmp_path,
        [*transaction(1, 100, table(), insert("0", "-")), *segment(2, insert("1", "a"), first=True), *stream_abort(2)],
        [
            *segment(3, insert("2", "b"), in_subtransaction(4, insert("3", "c")), first=True),
            *stream_abort(3, 4),
            *stream_commit(3, 200),
            *segment(5, insert("4", "d"), first=True),
        ],
    )
    transactions = archive.transactions.set_index("xid")
    assert transactions["fate"].to_dict() == {1: "committed", 2: "aborted", 3: "committed", 5: "open"}
    assert transactions["changes"].to_dict() == {1: 1, 2: 1, 3: 1, 5: 1}
    assert transactions["aborted_changes"].to_dict() == {1: 0, 2: 1, 3: 1, 5: 0}
    assert archive.rows("public.t")["id"].tolist() == ["0", "2"]
    assert archive.rows("public.t", fate="aborted")["id"].tolist() == ["3", "1"], (
        "by commit, then rows without a commit"
    )
    still_open = archive.rows("public.t", fate="open")
    assert still_open["_pg_commit_lsn"].isna().all()
    assert still_open["_pg_commit_ts"].isna().all()
    assert still_open["_pg_xid"].tolist() == [5]
    every = archive.rows("public.t", fate=None)
    assert dict(zip(every["id"], every["_pg_fate"], strict=True)) == {
        "0": "committed", "1": "aborted", "2": "committed", "3": "aborted", "4": "open",
    }  # fmt: skip
    assert archive.find_messages(xid=4)["kind"].tolist() == ["Insert", "StreamAbort"]


def test_a_table_without_a_key_and_with_a_given_key(tmp_path: Path) -> None:
    full: list[Change] = [table(identity=ReplicaIdentity.FULL), insert("1", "a"), update("1", "b", old=("1", "a"))]
    archive = landed(tmp_path, transaction(1, 100, *full, delete_full("1", "b")))
    assert archive.rows("public.t")["_pg_op"].tolist() == ["I", "D", "I", "D"]
    assert archive.rows("public.t", key=["id"])["_pg_op"].tolist() == ["I", "U", "D"]


def test_partitions_with_whole_rows_under_a_root_without_a_key(tmp_path: Path) -> None:
    partition = table(oid=1, name="t_1", identity=ReplicaIdentity.FULL)
    changes = (insert("1", "a"), update("1", "b", old_key=("1", "a")), delete("1", "b"))
    archive = landed(tmp_path, transaction(1, 100, table(key=()), partition, *changes))
    assert archive.rows("public.t")["_pg_op"].tolist() == ["I", "D", "I", "D"]
    assert archive.rows("public.t", key=["id"])["_pg_op"].tolist() == ["I", "U", "D"]


def test_rows_have_the_columns_of_all_versions(tmp_path: Path) -> None:
    """A column that changed its type is text."""
    archive = landed(
        tmp_path,
        transaction(1, 100, table(("id", INT4), ("n", INT4), "old"), insert("1", "7", "x")),
        transaction(2, 200, table(("id", INT4), "n", ("at", TIMESTAMPTZ)), insert("2", "z", "2026-01-31 12:00:00+00")),
    )
    rows = archive.rows("public.t")
    assert list(rows.columns[:4]) == ["id", "n", "old", "at"]
    assert rows["id"].tolist() == [1, 2]
    assert rows["n"].tolist() == ["7", "z"]
    assert rows["at"].tolist() == [pd.NaT, pd.Timestamp("2026-01-31 12:00Z")]
    assert rows["old"].tolist() == ["x", None]
    assert archive.rows("public.t", {"old": "x"})["id"].tolist() == [1]


def test_a_change_has_the_table_name_at_its_position(tmp_path: Path) -> None:
    archive = landed(
        tmp_path,
        transaction(1, 100, table(name="before"), insert("1", "a")),
        transaction(2, 200, table(name="after"), insert("2", "b")),
    )
    assert archive.changes["table"].tolist() == ["public.before", "public.after"]
    assert archive.rows("public.before")["id"].tolist() == ["1"]
    assert archive.rows("public.after")["id"].tolist() == ["2"]


def test_integers_with_nulls_do_not_become_floats(tmp_path: Path) -> None:
    large = 2**53 + 1
    archive = landed(
        tmp_path, transaction(1, large, table("id", ("n", 20)), insert("1", str(large)), insert("2", None))
    )
    assert archive.rows("public.t")["n"].tolist() == [large, pd.NA]
    assert archive.transactions["commit_lsn"].tolist() == [large]


def test_hostile_names_are_escaped_in_html(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\u202e\x1b[2J"
    archive = landed(tmp_path, transaction(1, 100, table("id", evil, name=evil, key=["id", evil]), insert("1", "a")))
    shown = archive._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert not {"\u202e", "\x1b"} & set(shown)
    assert archive.rows(f"public.{evil}", {evil: "a"})["id"].tolist() == ["1"]
    with pytest.raises(ConfigError, match="the name of a metadata column"):
        landed(tmp_path, transaction(1, 100, table("id", "_pg_op"), insert("1", "a"))).rows("public.t")


def test_a_damaged_archive_is_readable_and_marked(tmp_path: Path) -> None:
    whole = copydata([*transaction(1, 100, table(), insert("1", "a")), *transaction(2, 200, insert("2", "b"))])
    torn = bytearray(whole)
    torn[whole.rindex(b"I\x00\x00\x40\x00")] = 0xFF
    (tmp_path / "000.copydata").write_bytes(torn)
    (tmp_path / "001.copydata").write_bytes(copydata(transaction(3, 300, table(), insert("3", "c")), 0x2000000))
    archive = read_archive(tmp_path)
    assert archive.report.is_damaged
    assert "damaged or incomplete" in repr(archive)
    assert "Damaged, missing or out of order" in archive._repr_html_()
    assert {1, 3} <= set(archive.transactions["xid"].dropna())
    assert "Damage" in set(archive.messages["kind"])


def test_files_that_change_or_vanish_are_refused(tmp_path: Path) -> None:
    archive = landed(tmp_path, transaction(1, 100, table(), insert("1", "a")))
    (tmp_path / "000.copydata").unlink()
    with pytest.raises(ArchiveError, match=r"000\.copydata: can't be read"):
        _ = archive.changes
    (tmp_path / "000.copydata").write_bytes(b"")
    with pytest.raises(ArchiveError, match=r"000\.copydata: expected .* bytes, as it was listed with"):
        _ = archive.changes


def test_find_messages_by_table_time_and_lsn(tmp_path: Path) -> None:
    archive = story(tmp_path)
    assert archive.find_messages(table="public.*")["kind"].tolist()[:2] == ["Relation", "Insert"]
    assert set(archive.find_messages(lsn=("0/1000000", None))["kind"]) >= {"Begin", "Commit"}
    assert len(archive.find_messages(time=("2000-01-01", "2000-01-02"))) == len(archive.messages)
    assert archive.find_messages(time=("2000-01-02", None)).empty


def test_an_empty_archive_has_empty_frames(tmp_path: Path) -> None:
    archive = landed(tmp_path, [])
    assert archive.changes.empty
    assert archive.transactions.empty
    assert archive.messages.empty
    assert "1 file, 0 bytes" in repr(archive)


def test_a_table_without_a_relation_message_has_its_oid(tmp_path: Path) -> None:
    archive = landed(tmp_path, [Begin(100, 0, 1), insert("1", "a", oid=77)])
    path = next(iter(archive._view.tasks))
    (batch,) = change_batches(path, Path(path).read_bytes(), archive._view)
    assert batch.column("table").to_pylist() == ["OID 77"]
    assert batch.schema.field("commit_time").type == pa.timestamp("us", "UTC")


def test_a_script_may_read_an_archive_at_module_level(tmp_path: Path) -> None:
    """With files large enough for several processes, which would run the script again."""
    landing = tmp_path / "landing"
    landing.mkdir()
    large = [*transaction(1, 100, table(), *[insert("1", "x" * 5000)] * 1000), *transaction(2, 200, insert("2", "b"))]
    landed(landing, large, [*transaction(3, 300, table(), *[insert("3", "y" * 5000)] * 1000)])
    script = tmp_path / "script.py"
    statement = f"print(len(read_archive({str(landing)!r}).changes))"
    script.write_text(f"from pgoutput_etl.explore.archive import read_archive\n{statement}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2001\n", "")


def test_the_code_of_the_docs_page() -> None:
    text = (ROOT / "docs" / "inspect-and-plan.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"<!-- tested -->\n```python\n(.*?)```\n", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("landing/shop", str(ROOT / "notebooks" / "data" / "shop")), names)
    assert names["archive"].rows("public.orders", {"id": 137})["_pg_op"].tolist() == ["I", "U", "U", "U", "U", "D"]


def test_read_archive_works_without_spark(tmp_path: Path) -> None:
    story(tmp_path)
    script = (
        "import sys\nsys.modules['pyspark'] = None\nfrom pgoutput_etl.explore.archive import read_archive\n"
        f"print(len(read_archive({str(tmp_path)!r}).rows('public.t')))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("7\n", "")
