"""`columns` and `rename` through the job: tables, and no dropped, hashed, or redacted value anywhere on disk."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.exit_codes import EXIT_QUARANTINE
from pgoutput_etl.ingest.binary_files import scan_files
from pgoutput_etl.protocol.messages import Begin, Commit, ReplicaIdentity
from pgoutput_etl.spark.workers import first_scan
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from tests.spark.jobs.test_secrets import CELL, left_behind
from tests.support.jobs import Nights, held
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    commit_prepared,
    delete,
    delete_full,
    insert,
    prepared,
    segment,
    stream_commit,
    table,
    transaction,
    update,
)

pytestmark = pytest.mark.spark
SALT = "a salt of sixteen bytes and more"
HIDDEN, SHOWN = "h1ddenVa1ue", "sh0wnVa1ue"
FULL = ReplicaIdentity.FULL
USES = "columns: {mail: {hash: sha256}, note: drop, card: redact}"
MODES = ("mirror", "history", "soft_delete", "append")


def hashed(text: str) -> str:
    return hmac.new(SALT.encode(), text.encode(), "sha256").hexdigest()


def with_rules(nights: Nights, *rules: str) -> Nights:
    nights.job.overrides[:] = [f"tables=[{', '.join(rules)}]"]
    nights.job.environ["PGOUTPUT_ETL_SALT"] = SALT
    return nights


def strings(value: Any) -> Iterator[str]:
    """All values of a row, as text."""
    if isinstance(value, bytes):
        yield value.decode("latin-1")
    elif isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def texts_on_disk(folder: Path) -> dict[str, str]:
    """The texts of every file: Parquet's values and statistics; other files' bytes."""
    texts = {}
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            rows = "\n".join(text for row in file.read().to_pylist() for text in strings(row))
            texts[str(path)] = rows + str(path.read_bytes(), "latin-1")
        elif path.is_file():
            texts[str(path)] = str(path.read_bytes(), "latin-1")
    return texts


def places(marker: str, folder: Path) -> list[str]:
    return [name for name, text in texts_on_disk(folder).items() if marker in text or marker.encode().hex() in text]


def secret_rows(oid: int, name: str, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> list[Change]:
    """A table with every kind of change; all its hidden values are marked."""
    columns = table("id", "mail", "note", "card", "open", oid=oid, name=name, identity=identity)
    hidden = [f"{HIDDEN}{i}" for i in range(9)]
    rows = [("1", *hidden[:3], SHOWN), ("2", *hidden[3:6], SHOWN), ("3", None, None, None, SHOWN)]
    changes: list[Change] = [columns, *(insert(*row, oid=oid) for row in rows)]
    if identity is FULL:
        changes += [
            update("1", TOAST, hidden[6], TOAST, "x", old=rows[0], oid=oid),
            delete_full(*rows[1], oid=oid),
        ]
    else:
        changes += [
            update("1", TOAST, hidden[6], TOAST, "x", oid=oid),
            update("4", hidden[7], TOAST, hidden[8], SHOWN, old_key=("2", None, None, None, None), oid=oid),
            delete("3", None, None, None, None, oid=oid),
        ]
    return changes


def test_no_hidden_value_is_anywhere_on_disk(nights: Nights, tmp_path: Path) -> None:
    """In every mode, with bags, damaged bytes, and transactions that wait: streamed, prepared, and split."""
    names = [*MODES, "bag", "spoilt"]
    with_rules(
        nights,
        *(f"{{match: public.{mode}, mode: {mode}, {USES}}}" for mode in MODES),
        *(f"{{match: public.{name}, {USES}}}" for name in ("bag", "spoilt")),
        "{match: public.later, columns: {mail: {hash: sha256}, note: drop, card: redact}}",
    )
    described: Messages = []
    lsn = 0x100
    for oid, name in enumerate(names, start=101):
        changes = secret_rows(oid, name, FULL if name == "bag" else ReplicaIdentity.DEFAULT)
        described += transaction(oid, lsn, *changes)
        lsn += 0x100
    damaged = transaction(900, lsn, insert("9", f"{HIDDEN}damaged", None, None, SHOWN, oid=106))
    streamed = segment(901, *secret_rows(110, "later"), first=True)
    two_phase = prepared(902, insert("20", f"{HIDDEN}p", f"{HIDDEN}q", f"{HIDDEN}r", SHOWN, oid=101))
    begun: Messages = [Begin(0x1200, 0, 903), insert("30", f"{HIDDEN}s", f"{HIDDEN}t", f"{HIDDEN}u", SHOWN, oid=101)]
    path = nights.land([*described, *damaged, *streamed, *two_phase, *begun])
    content = path.read_bytes()
    at = content.index(f"{HIDDEN}damaged".encode()) - 5
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])

    summary = nights.job.run()
    assert summary.exit_code == EXIT_QUARANTINE
    assert set(held(summary)) == {"spoilt"}
    target = tmp_path / "tables"
    assert nights.ledger("open_transactions"), "a transaction waits"
    assert [row for row in nights.ledger("quarantine") if row["length"]], "and bytes are in quarantine"
    assert all(row["bytes"] is None for row in nights.ledger("quarantine"))
    assert places(SHOWN, target), "the search finds existing values"
    assert any("open_transactions" in name for name in places(SHOWN, target))
    assert places(HIDDEN, target) == []
    assert places(SALT, target) == []

    rest: Messages = [insert("31", "", "", "", "", oid=101), Commit(0x1200, 0x1208, 0)]
    nights.night([*rest, *stream_commit(901, 0x1300), *commit_prepared(902, 0x1400)])
    assert places(HIDDEN, target) == []
    assert places(SALT, target) == []
    one = ("1", hashed(f"{HIDDEN}0"), "REDACTED", "x")
    four = ("4", hashed(f"{HIDDEN}7"), "REDACTED", SHOWN)
    late = [
        ("20", hashed(f"{HIDDEN}p"), "REDACTED", SHOWN),
        ("30", hashed(f"{HIDDEN}s"), "REDACTED", SHOWN),
        ("31", hashed(""), "REDACTED", ""),
    ]
    assert nights.values("mirror") == sorted([one, four, *late])
    assert nights.values("later") == [one, four]
    assert sorted(nights.values("bag"), key=str) == sorted([one, ("3", None, None, SHOWN)], key=str)


def test_blocks_persisted_by_spark_have_no_hidden_value(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    persisted = []
    scan = scan_files

    def remembered(*arguments: Any, **named: Any) -> Any:
        persisted.append(scan(*arguments, **named))
        return persisted[-1]

    monkeypatch.setattr("pgoutput_etl.ingest.landing_folder.scan_files", remembered)
    with_rules(nights, f"{{match: public.t, {USES}}}")
    nights.land(transaction(1, 0x100, *secret_rows(101, "t")))
    nights.job.run()
    assert len(persisted) == 2
    with first_scan(nights.job.spark):
        blocks = [row for frame in persisted for row in frame.toArrow().to_pylist()]
    assert any(SHOWN.encode() in row["tuples"] for row in blocks)
    assert not [row for row in blocks if HIDDEN.encode() in row["tuples"] or HIDDEN.encode() in row["head"]]


@pytest.mark.soak
def test_changed_masks_are_refused_until_the_table_is_rebuilt(nights: Nights) -> None:
    with_rules(nights, "{match: public.t, columns: {mail: {hash: sha256}}}")
    columns = table("id", "mail", "note")
    nights.night(transaction(1, 0x100, columns, insert("1", "a", "b")))
    nights.land(transaction(2, 0x200, insert("2", "c", "d")))
    before = nights.job.versions()

    nights.job.environ["PGOUTPUT_ETL_SALT"] = "another salt of sixteen bytes"
    with pytest.raises(RunError, match=r"mail was hashed with another salt.*rebuild the table from the archive"):
        nights.job.run()
    with_rules(nights, "{match: public.t, columns: {mail: {hash: sha256}, note: drop}}")
    with pytest.raises(RunError, match=r"note \(as it is before, drop now\)"):
        nights.job.run()
    with_rules(nights, "{match: public.t}")
    with pytest.raises(RunError, match=r"mail \(hash before, as it is now\)"):
        nights.job.run()
    assert nights.job.versions() == before

    with_rules(nights, "{match: public.t, columns: {mail: drop, note: {hash: sha256}}}")
    nights.job.backfill(BackfillRequest(("public.t",)))
    assert nights.values("t") == [("1", hashed("b"))]
    nights.job.run()
    assert nights.values("t") == [("1", hashed("b")), ("2", hashed("d"))]


@pytest.mark.soak
def test_waiting_changes_are_read_again_if_masks_have_changed(nights: Nights) -> None:
    columns = table("id", "mail", "note")
    with_rules(nights, "{match: public.t, columns: {mail: {hash: sha256}}}")
    nights.night(transaction(1, 0x100, columns, insert("1", "a", "b")), prepared(2, insert("2", "c", "d")))
    with_rules(nights, "{match: public.t, columns: {note: {hash: sha256}}}")
    nights.job.backfill(BackfillRequest(("public.t",)))
    nights.night(commit_prepared(2, 0x200))
    assert nights.values("t") == [("1", "a", hashed("b")), ("2", "c", hashed("d"))]


def test_a_missing_column_is_refused_before_anything_is_written(nights: Nights, tmp_path: Path) -> None:
    with_rules(nights, "{match: public.t, columns: {emial: drop}}")
    nights.land(transaction(1, 0x100, table("id", "email"), insert("1", "x")))
    with pytest.raises(ConfigError, match=r"tables\[0\].columns.emial: .* public.t has id, email"):
        nights.job.run()
    assert not (tmp_path / "tables" / "public").exists()


@pytest.mark.soak
def test_a_renamed_column_needs_a_mask_under_its_new_name(nights: Nights) -> None:
    with_rules(nights, "{match: public.t, columns: {mail: {hash: sha256}}}")
    nights.night(transaction(1, 0x100, table("id", "mail", "v"), insert("1", "a", "x")))
    nights.land(transaction(2, 0x200, table("id", "email", "v"), insert("2", f"{HIDDEN}", "x")))
    with pytest.raises(ConfigError, match="no longer has the masked column 'mail'"):
        nights.job.run()
    assert places(HIDDEN, nights.job.folder / "tables") == []
    with_rules(nights, "{match: public.t, columns: {mail: {hash: sha256}, email: {hash: sha256}}}")
    nights.job.run()
    assert nights.job.columns("public", "t") == ["id", "email", "v"]
    assert nights.values("t") == [("1", hashed("a"), "x"), ("2", hashed(HIDDEN), "x")]


@pytest.mark.soak
def test_a_value_that_can_not_be_hashed_holds_its_table(nights: Nights) -> None:
    with_rules(nights, "{match: public.odd, columns: {n: {hash: sha256}}}")
    summary = nights.night(
        transaction(1, 0x100, table("id", ("n", 23), oid=2, name="odd"), insert("1", HIDDEN, oid=2)),
        transaction(2, 0x200, table("id", oid=3, name="fine"), insert("1", oid=3)),
    )
    assert "column 'n' can't be hashed: expected" in held(summary)["odd"]
    assert HIDDEN not in held(summary)["odd"]
    assert nights.values("fine") == [("1",)]
    with_rules(nights, "{match: public.odd, columns: {n: redact}}")
    nights.job.backfill(BackfillRequest(None))
    assert nights.values("odd") == [("1", "REDACTED")]


@pytest.mark.soak
def test_a_renamed_table_is_moved_and_not_duplicated(nights: Nights, tmp_path: Path) -> None:
    nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a")))
    with_rules(nights, "{match: public.t, rename: c r/m.the~one}")
    nights.night(transaction(2, 0x200, insert("2", "b")))
    assert nights.values("the~one", "c r/m") == [("1", "a"), ("2", "b")]
    assert nights.values("t") == []
    assert (tmp_path / "tables" / "c r%2Fm" / "the%7Eone" / "_delta_log").is_dir()
    nights.night(transaction(3, 0x300, update("2", "c")))
    assert nights.values("the~one", "c r/m") == [("1", "a"), ("2", "c")]
    with_rules(nights)
    nights.night(transaction(4, 0x400, delete("1", None)))
    assert nights.values("t") == [("2", "c")]
    assert [row["kind"] for row in nights.ledger("schema_changes")].count(
        "table moved to the path that the configuration gives it"
    ) == 2


@pytest.mark.soak
def test_a_table_can_not_be_renamed_to_an_existing_name(nights: Nights) -> None:
    with_rules(nights, "{match: public.t, rename: public.other}")
    nights.land(
        transaction(1, 0x100, table("id"), insert("1"), table("id", oid=2, name="other"), insert("2", oid=2)),
    )
    with pytest.raises(ConfigError, match=r"tables\[0\].rename: the archive has another table public.other"):
        nights.job.run()


@pytest.mark.soak
def test_verify_leaves_out_masked_columns(nights: Nights, tmp_path: Path) -> None:
    with_rules(nights, f"{{match: public.t, {USES}}}")
    rows = [("1", "a", "b", "c", SHOWN), ("2", None, None, None, SHOWN)]
    columns = table("id", "mail", "note", "card", "open")
    nights.night(transaction(1, 0x100, columns, *(insert(*row) for row in rows)))
    csv = tmp_path / "t.csv"
    csv.write_text(f"id,mail,note,card,open\n1,a,b,c,{SHOWN}\n2,,,,{SHOWN}\n")
    job = nights.job
    summary = verify(job.spark, job.loaded(), VerifyRequest(csv=str(csv), tables=("public.t",)), lambda _: None)
    [verified] = summary.tables
    assert (summary.exit_code, verified.rows, verified.other_rows, verified.ranges_differing) == (0, 2, 2, 0)
    assert dict(verified.not_compared) == {
        "mail": "the configuration masks it (hash)",
        "card": "the configuration masks it (redact)",
        "note": "the configuration drops it",
    }


@pytest.mark.soak
def test_plan_sees_the_columns_that_apply_will_write(nights: Nights, tmp_path: Path) -> None:
    with_rules(nights, f"{{match: public.t, {USES}, rename: crm.t}}")
    nights.land(transaction(1, 0x100, *secret_rows(101, "t")))
    summary = plan(nights.job.spark, nights.job.loaded(), lambda _: None)
    [planned] = summary.tables
    assert (planned.held, planned.inserted, planned.has_key) == (None, 2, True)
    assert planned.path == str(tmp_path / "tables/crm/t")
    assert HIDDEN not in summary.to_json()
    assert not (tmp_path / "tables").exists()


@pytest.mark.soak
def test_a_batch_that_died_is_finished_with_the_same_columns(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rules(nights, f"{{match: public.t, {USES}}}")
    nights.land(transaction(1, 0x100, *secret_rows(101, "t")))

    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("pgoutput_etl.ledger.ledger.Ledger.close", dies)
        with pytest.raises(RuntimeError, match="killed"):
            nights.job.run()
    nights.job.run()
    assert nights.values("t") == [
        ("1", hashed(f"{HIDDEN}0"), "REDACTED", "x"),
        ("4", hashed(f"{HIDDEN}7"), "REDACTED", SHOWN),
    ]
    assert places(HIDDEN, nights.job.folder / "tables") == []


@pytest.mark.soak
def test_a_hashed_key_still_identifies_rows(nights: Nights) -> None:
    with_rules(nights, "{match: public.t, columns: {id: {hash: sha256}}}")
    nights.night(transaction(1, 0x100, table("id", "big"), insert("1", "one"), insert("2", "two")))
    nights.night(transaction(2, 0x200, update("1", "uno"), update("3", TOAST, old_key=("2", None)), delete("1", None)))
    assert nights.values("t") == [(hashed("3"), "two")]


@pytest.mark.soak
def test_the_salt_is_only_in_the_environment(tmp_path: Path, landing: Path) -> None:
    """Not in logs at level INFO, the event log, command lines, outputs, tables, or ledger; nor are hidden values."""
    rules = "{match: public.t, columns: {v: {hash: sha256}}}, {match: public.bag, columns: {v: redact}}"
    texts = left_behind(tmp_path, landing, f"tables: [{rules}]\n", PGOUTPUT_ETL_SALT=SALT)
    texts |= texts_on_disk(tmp_path / "tables")
    assert hashed("x") in "".join(text for name, text in texts.items() if "/public/t/" in name)
    for secret in (SALT, SALT.encode().hex()):
        assert [name for name, text in texts.items() if secret in text] == []
    assert [name for name, text in texts.items() if "/public/bag/" in name and CELL in text] == []
