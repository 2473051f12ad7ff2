"""The rows of `spark.read.format("pgoutput")`, planned and read in this process, compared with the replay."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest

from pgoutput_etl.config.settings import OnError
from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.read_plan import ReadPlan
from pgoutput_etl.datasource.stream import PlannedArchive
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.explore.archive import read_archive
from pgoutput_etl.explore.table_rows import ADDED_COLUMNS
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import Message, Relation, ReplicaIdentity, Type
from pgoutput_etl.types import UserTypes, type_of
from pgoutput_etl.types.printing import canonical_texts
from tests.support.captures import DATA, files_of
from tests.support.kept_rows import NOTES, applied, counted
from tests.support.protected_replay import ENVIRON
from tests.support.replays import replay_of_slot
from tests.support.small_archives import (
    TOAST,
    Messages,
    commit_prepared,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    prepared,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

SLOTS = [
    "random16/v2",
    *(
        pytest.param(slot, marks=pytest.mark.soak)
        for slot in ("pg14/v2_stream", "pg16/v3_twophase", "pg16/v4_parallel")
    ),
    pytest.param("pg16/v4_twophase_parallel_binary", marks=pytest.mark.soak),
]
SALT = "PGOUTPUT_ETL_SALT"
BOOL, INT4, NUMERIC, JSONB = 16, 23, 1700, 3802

Rows = list[dict[str, Any]]


def planned(path: Path, **options: str) -> ReadPlan:
    """As tasks get it."""
    plan: ReadPlan = pickle.loads(pickle.dumps(PlannedArchive.of(ReadOptions.of({"path": str(path), **options})).plan))
    return plan


def rows_of(path: Path, **options: str) -> Rows:
    plan = planned(path, **options)
    batches = [batch for part in plan.parts() for batch in plan.read(part)]
    assert all(batch.schema == plan.schema for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def landed(folder: Path, *files: Messages) -> Path:
    for number, messages in enumerate(files):
        (folder / f"{number:03}.copydata").write_bytes(copydata(messages, 0x1000000 * (number + 1)))
    return folder


@pytest.fixture(params=SLOTS)
def slot(request: pytest.FixtureRequest) -> Path:
    return DATA / str(request.param)


def test_a_tables_rows_give_the_replays_table(slot: Path) -> None:
    replay, compared = replay_of_slot(slot), 0
    for oid, want in replay.tables().items():
        names = {relation.full_name for relation in _relations(replay, oid)}
        others = (r.full_name for o in replay.assembly.relations.oids() - {oid} for r in _relations(replay, o))
        columns = {tuple(c.name for c in relation.columns) for relation in _relations(replay, oid)}
        if len(names) > 1 or len(columns) > 1 or names & {*others}:
            continue  # the replay has the newest columns and names, the rows those at their position
        rows = rows_of(slot, tables=min(names))
        assert list(rows[0])[:5] == ["_op", "_commit_lsn", "_commit_ts", "_xid", "_seq"]
        metadata = {name.replace("_pg", "", 1): name for name in ADDED_COLUMNS.names}
        events = [{metadata.get(name, name): value for name, value in row.items()} for row in rows]
        assert _rows(applied(events, want.shape)) == _rows(want.rows)
        compared += 1
        if compared == 3:  # each inspects the archive
            break
    assert compared == 3


def _relations(replay: Any, oid: int) -> Any:
    return replay.assembly.relations.versions(oid).relations


def _rows(rows: Any) -> Counter[tuple[str, ...]]:
    return counted({**row, NOTES: dict(row[NOTES] or {})} for row in rows)


def test_rows_as_json_are_the_replays_changes(slot: Path) -> None:
    replay = replay_of_slot(slot)
    types = UserTypes.of(replay.assembly.types.values(), {})
    want: Counter[str] = Counter()
    for row in replay.committed():
        versions = replay.assembly.relations.versions(row["relation"])
        number = versions.at((row["file"], row["ordinal"]), row["scope"])
        assert number is not None
        relation = versions.relations[number]
        old, new = (row[name] and sent(row[name], relation, types) for name in ("old", "new"))
        if row["old_kind"] == "K":
            old = {name: value for name, value in old.items() if value is not None}
        new = new and {**{name: (old or {})[name] for name in (old or {}) if name not in new}, **new}
        want[repr((relation.full_name, row["tag"], row["commit_lsn"], row["top_xid"], plain(old), plain(new)))] += 1
    have: Counter[str] = Counter()
    for row in rows_of(slot):
        before, after = (row[name] and parsed(row[name]) for name in ("before", "after"))
        have[repr((row["_table"], row["_op"], row["_commit_lsn"], row["_xid"], plain(before), plain(after)))] += 1
    assert have == want
    assert len(want) > 100


def plain(row: dict[str, Any] | None) -> Any:
    return row and sorted(row.items())


def parsed(text: str) -> Any:
    """JSON with its numbers as they are written."""
    return json.loads(text, parse_int=str, parse_float=str)


def sent(data: bytes, relation: Relation, types: UserTypes) -> dict[str, Any]:
    """The values in a tuple, one by one, without unchanged ones."""
    read = read_tuple(data)
    values: dict[str, Any] = {}
    for column, kind, value in zip(relation.columns, read.kinds, read.values, strict=True):
        if chr(kind) == "u":
            continue
        column_type = type_of(column, types)
        [text] = [None] if value is None else canonical_texts(column_type, [value], chr(kind) == "b")
        values[column.name] = None if text is None else text.decode()
        if text is not None and column_type.name in ("json", "jsonb"):
            values[column.name] = parsed(text.decode())
        elif text is not None and column_type.name == "bool":
            values[column.name] = text == b"t"
    return values


def test_messages_and_transactions_are_the_replays(slot: Path) -> None:
    want = replay_of_slot(slot).logical_messages()
    names = {"lsn": "lsn", "prefix": "prefix", "content": "content", "xid": "_xid", "commit_lsn": "_commit_lsn"}
    have = [{name: row[own] for name, own in names.items()} for row in rows_of(slot, kind="messages")]
    assert have == [{name: row[name] for name in names} for row in want]

    transactions = read_archive(files_of(slot)).transactions
    rows = rows_of(slot, kind="transactions")
    assert Counter(row["status"] for row in rows) == transactions["fate"].value_counts().to_dict()
    assert Counter(row["_commit_lsn"] for row in rows) == Counter(
        None if lsn is pd.NA else lsn for lsn in transactions["commit_lsn"]
    )


def test_relations_are_every_version(slot: Path) -> None:
    rows = rows_of(slot, kind="relations")
    report = read_archive(files_of(slot)).report
    versions = [(r.oid, v.table, len(v.columns)) for r in report.relations for v in r.versions]
    assert [(row["oid"], row["table"], len(row["columns"])) for row in rows] == versions
    [first, *_] = report.relations
    only = rows_of(slot, kind="relations", tables=f"{first.schema}.{first.table}")
    assert {row["oid"] for row in only} == {first.oid}


def test_a_changes_json(tmp_path: Path) -> None:
    described = table(("id", INT4), ("n", NUMERIC), ("ok", BOOL), ("doc", JSONB), "v")
    archive = landed(
        tmp_path,
        transaction(
            1,
            100,
            described,
            insert("1", "1.50", "t", '{"a": [1, null]}', 'say "hi"'),
            insert("2", "NaN", None, None, "ä"),
            update("1", "2", "f", TOAST, TOAST),
            update("3", "2", "f", "1", "x", old_key=("1", None, None, None, None)),
            delete("3", None, None, None, None),
            truncate(),
        ),
        transaction(2, 200, table(identity=ReplicaIdentity.FULL), insert("1", "a")),
        transaction(3, 300, update("1", TOAST, old=("1", "a")), delete_full("1", "a")),
    )
    assert [(row["_op"], row["before"], row["after"]) for row in rows_of(archive)] == [
        ("I", None, '{"id": 1, "n": 1.50, "ok": true, "doc": {"a": [1, null]}, "v": "say \\"hi\\""}'),
        ("I", None, '{"id": 2, "n": "NaN", "ok": null, "doc": null, "v": "ä"}'),
        ("U", None, '{"id": 1, "n": 2, "ok": false}'),
        ("U", '{"id": 1}', '{"id": 3, "n": 2, "ok": false, "doc": 1, "v": "x"}'),
        ("D", '{"id": 3}', None),
        ("T", None, None),
        ("I", None, '{"id": "1", "v": "a"}'),
        ("U", '{"id": "1", "v": "a"}', '{"id": "1", "v": "a"}'),
        ("D", '{"id": "1", "v": "a"}', None),
    ]


def test_hstore_is_a_map_as_in_delta(tmp_path: Path) -> None:
    described = table("id", ("tags", 50000))
    archive = landed(
        tmp_path,
        transaction(1, 100, Type(None, 50000, "public", "hstore"), described, insert("1", '"a"=>"1", "b"=>NULL')),
    )
    assert [row["tags"] for row in rows_of(archive, tables="public.t")] == [[("a", "1"), ("b", None)]]
    assert read_archive(archive).rows("public.t")["tags"].tolist() == [{"a": "1", "b": None}]


def streamed(folder: Path) -> Path:
    """Commits at 100, 200 (begun in the first file), 300, and 400; an aborted, an open, and a rolled-back one."""
    return landed(
        folder,
        [*transaction(1, 100, table(), insert("0", "-")), *segment(2, insert("1", "a"), first=True)],
        [
            *segment(2, insert("2", "b"), in_subtransaction(4, insert("3", "c"))),
            *stream_abort(2, 4),
            *stream_commit(2, 200),
            *transaction(5, 300, insert("4", "d"), truncate()),
        ],
        [
            *prepared(6, insert("5", "e"), lsn=320),
            *prepared(7, insert("6", "f"), lsn=330),
            *rollback_prepared(7),
            *commit_prepared(6, 400),
            *segment(8, insert("7", "g"), first=True),
        ],
    )


def test_only_committed_changes_count(tmp_path: Path) -> None:
    archive = streamed(tmp_path)
    assert [row["id"] for row in rows_of(archive, tables="public.t")] == ["0", "1", "2", "4", None, "5"]
    assert {row["_xid"]: row["status"] for row in rows_of(archive, kind="transactions")} == {
        1: "committed", 2: "committed", 5: "committed", 6: "committed", 7: "aborted", 8: "open",
    }  # fmt: skip


def test_options_narrow_rows_and_files(tmp_path: Path) -> None:
    archive = streamed(tmp_path)

    def lsns(**options: str) -> list[int]:
        return sorted({row["_commit_lsn"] for row in rows_of(archive, **options)})

    assert lsns(from_lsn="0/C8") == [200, 300, 400]
    assert lsns(from_lsn="0/C8", to_lsn="0/12C", kind="transactions") == [200, 300]
    assert lsns(to_time="1999-12-31") == []
    assert lsns(from_time="2000-01-01", to_time="2000-01-01T00:00:00Z") == [100, 200, 300, 400]
    assert lsns(ops="T") == [300]
    assert lsns(ops="D, T", tables="public.t") == [300]

    def files(**options: str) -> list[str]:
        return [Path(path).name[:3] for part in planned(archive, **options).parts() for path in part or ()]

    assert files() == ["000", "001", "002"]
    assert files(to_lsn="0/64") == ["000"]
    assert files(from_lsn="0/C8", to_lsn="0/C8") == ["000", "001"], "the transaction begins in the first one"
    assert files(from_lsn="0/190") == ["002"]
    assert files(from_lsn="0/190", kind="messages") == ["000", "001", "002"]


def test_messages_count_once(tmp_path: Path) -> None:
    outside, inside = Message(None, False, 50, "app", b"x"), Message(None, True, 60, "app", b"y")
    archive = landed(tmp_path, [outside, *transaction(1, 100, inside)], [outside, *transaction(1, 100, inside)])
    rows = rows_of(archive, kind="messages")
    assert [(row["lsn"], row["content"], row["_commit_lsn"]) for row in rows] == [(50, b"x", None), (60, b"y", 100)]


def test_tables_are_chosen_by_patterns(tmp_path: Path) -> None:
    other = table(oid=2, name="u")
    archive = landed(tmp_path, transaction(1, 100, table(), insert("1", "a"), other, insert("2", "b", oid=2)))
    assert [row["_table"] for row in rows_of(archive)] == ["public.t", "public.u"]
    assert [row["_table"] for row in rows_of(archive, tables="public.*, !*.t")] == ["public.u"]
    assert [row["_table"] for row in rows_of(archive, tables="public.t,public.u")] == ["public.t", "public.u"]
    for tables in ("public.x", "public.t,public.x"):
        with pytest.raises(ConfigError, match=r"the archive has no table 'public\.x'"):
            planned(archive, tables=tables)


def test_masks_of_the_configuration_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SALT, ENVIRON[SALT])
    folder = tmp_path / "landing"
    folder.mkdir()
    other = table(oid=2, name="u")
    archive = landed(
        folder,
        transaction(1, 100, table("id", "mail", "note", ("n", 20)), insert("1", "a@secret", "secret", "7")),
        transaction(2, 200, other, insert("1", "secret", oid=2)),
    )
    columns = "{mail: {hash: sha256}, note: drop, n: {redact: hidden}}"
    rules = f"[{{match: public.t, columns: {columns}}}, {{match: public.u, skip: true}}]"
    config = tmp_path / "shop.yaml"
    config.write_text(
        f"source: {{name: shop, landing: {folder}}}\ntarget: {{root: out}}\ntables: {rules}\n", encoding="utf-8"
    )
    [row] = rows_of(archive, config=str(config), tables="public.t")
    assert list(row)[5:8] == ["id", "mail", "n"]
    assert (row["id"], len(row["mail"]), row["n"]) == ("1", 64, "hidden")
    [change] = rows_of(archive, config=str(config))
    assert json.loads(change["after"]) == {"id": "1", "mail": row["mail"], "n": "hidden"}
    assert "note" not in json.dumps(rows_of(archive, config=str(config), kind="relations"))
    of_landing = PlannedArchive.of(ReadOptions.of({"config": str(config)})).plan
    sources = f"[{{name: other, landing: x}}, {{name: shop, landing: {folder}}}]"
    several = tmp_path / "several.yaml"
    several.write_text(f"sources: {sources}\ntarget: {{root: out}}\ntables: {rules}\n", encoding="utf-8")
    assert ReadOptions.of({"config": str(several), "source": "shop"}) == ReadOptions.of({"config": str(config)})
    assert [batch.num_rows for part in of_landing.parts() for batch in of_landing.read(part)] == [1]


def test_a_damaged_archive_is_refused_unless_asked_for(tmp_path: Path) -> None:
    whole = copydata([*transaction(1, 100, table(), insert("1", "a")), *transaction(2, 200, insert("2", "b"))])
    torn = bytearray(whole)
    torn[whole.rindex(b"I\x00\x00\x40\x00")] = 0xFF
    (tmp_path / "000.copydata").write_bytes(torn)
    with pytest.raises(ArchiveError, match="the option on_error to quarantine"):
        planned(tmp_path)
    assert [row["_xid"] for row in rows_of(tmp_path, on_error=OnError.QUARANTINE.value)] == [1]


def test_changes_without_a_description_are_refused(tmp_path: Path) -> None:
    archive = landed(
        tmp_path, transaction(1, 100, insert("1", "a"), table(), insert("2", "b"), insert("3", "c", oid=2))
    )
    with pytest.raises(ArchiveError, match=r"no Relation message describes OID 2 .*\(and 1 more problem\)"):
        planned(archive)
    assert [row["id"] for row in rows_of(archive, on_error="quarantine", tables="public.t")] == ["2"]


def test_an_invalid_value_is_named_without_itself(tmp_path: Path) -> None:
    archive = landed(tmp_path, transaction(1, 100, table(("id", INT4), "v"), insert("secret", "a")))
    for tables in ("public.t", "public.*"):
        with pytest.raises(ArchiveError, match=r"000\.copydata.*offset \d+.*public\.t.*int4") as error:
            rows_of(archive, tables=tables)
        assert "secret" not in str(error.value)


def test_a_column_with_the_name_of_a_metadata_column(tmp_path: Path) -> None:
    archive = landed(tmp_path, transaction(1, 100, table("id", "_op"), insert("1", "a")))
    with pytest.raises(ConfigError, match=r"public\.t has a column '_op', which is the name of a metadata column"):
        planned(archive, tables="public.t")
    assert [row["after"] for row in rows_of(archive)] == ['{"id": "1", "_op": "a"}']


def test_files_of_a_url(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    landed(tmp_path, transaction(1, 100, table(), insert("1", "a")), transaction(2, 200, insert("2", "b")))
    for path in tmp_path.iterdir():
        memory.pipe(f"/lake/shop/{path.name}", path.read_bytes())
    memory.pipe("/lake/shop/_SUCCESS", b"")
    plans = [
        PlannedArchive.of(ReadOptions.of({"path": f"memory://lake/{path}"})).plan for path in ("shop", "sh*/*.copydata")
    ]
    for plan in plans:
        rows = [row for part in plan.parts() for batch in plan.read(part) for row in batch.to_pylist()]
        assert [row["_xid"] for row in rows] == [1, 2]
    memory.rm("/lake/shop/001.copydata")
    with pytest.raises(ArchiveError, match=r"memory://.*001\.copydata: can't be read"):
        list(plans[0].read(plans[0].parts()[0]))
    for missing in ("memory://lake/nothing", str(tmp_path / "nothing")):
        with pytest.raises(ConfigError, match="does not exist"):
            PlannedArchive.of(ReadOptions.of({"path": missing}))
    with pytest.raises(ConfigError, match=r"x-y://lake: .*pgoutput-etl\[storage\]"):
        PlannedArchive.of(ReadOptions.of({"path": "x-y://lake"}))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tabels": "x"}, "option 'tabels': expected one of path, "),
        ({"kind": "rows"}, "option 'kind' has a wrong value: expected one of changes, messages, "),
        ({"from_lsn": "x"}, "option 'from_lsn' has a wrong value: not an LSN"),
        ({"ops": "I,X"}, "option 'ops' has a wrong value: expected some of I, U, D, T"),
        (
            {"kind": "relations", "to_time": "2026-01-01"},
            "option 'to_time': expected only with kind changes or messages",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ReadOptions.of({"path": "x", **options})


def test_a_path_is_needed() -> None:
    with pytest.raises(ConfigError, match="load: expected the path of an archive"):
        ReadOptions.of({})
