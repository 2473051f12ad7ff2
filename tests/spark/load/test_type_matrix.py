"""Every type with the values at its limits, from a real server to a Delta table, read by Spark and by a Rust reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.delta_side import DeltaSide
from pgoutput_etl.answers.verify.row_text import delta_texts, small_texts
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.small_rows import SmallTable, StoredColumn, kinds_of
from pgoutput_etl.load.target_columns import has_two_forms
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.delta_files import open_files
from pgoutput_etl.targets.write_method import SMALL_BYTES
from pgoutput_etl.types.canonical_text import ComparedColumn
from tests.support.jobs import Job
from tests.support.servers.postgres import Server, Version
from tests.support.type_cases import USER_TYPES, Case, Form, cases

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

# A row's values, and its unrepresentable texts, by column; None is NULL.
Row = tuple[dict[str, Any], dict[str, str]]
ZONE = "Asia/Kathmandu"  # the sender's; stored times must be UTC. Its offset was once +05:41:16.
NO_VALUES = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "gtsvector"}  # no input function
NO_VALUES |= {"pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table with a column of each type: the server's values, and the target's path."""

    job: Job
    cases: list[Case]
    truth: dict[int, Row]
    path: Path
    built_in_types: dict[str, str]  # the type's name in pg_type -> the column's, or "" if there is none


# The server's version, the form, and True for a bag, whose rows are identified by all their values.
RUNS = [
    pytest.param((18, "binary", False), id="18-binary"),
    pytest.param((18, "text", False), id="18-text", marks=pytest.mark.soak),
    pytest.param((16, "binary", False), id="16-binary", marks=pytest.mark.soak),
    pytest.param((16, "text", False), id="16-text", marks=pytest.mark.soak),
    pytest.param((18, "binary", True), id="18-binary-bag", marks=pytest.mark.soak),
    pytest.param((18, "text", True), id="18-text-bag", marks=pytest.mark.soak),
]
CHANGES = """
delete from matrix where id % 3 = 0;
update matrix set id = id + 1000 where id % 3 = 1;
"""


@pytest.fixture(scope="module", params=RUNS)
def matrix(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    version, form, is_bag = cast("tuple[Version, Form, bool]", request.param)
    folder = tmp_path_factory.mktemp(f"{version}-{form}")
    job = Job(spark, folder, folder / "landing")
    job.landing.mkdir()
    columns = cases(version, form)
    with Server(version, {"timezone": ZONE}) as server:
        server.psql(USER_TYPES)
        create(server, columns)
        if is_bag:
            server.psql("alter table matrix replica identity full")
        server.create_slot("slot")
        fill(server, columns)
        land_and_run(server, form, job, columns, 1)
        if is_bag:
            server.psql(CHANGES)
            land_and_run(server, form, job, columns, 2)
        truth = truth_of(server, columns, form)
        built_in_types = columns_of_types(server)
    return Matrix(job, columns, truth, job.path("public", "matrix"), built_in_types)


def land_and_run(server: Server, form: Form, job: Job, columns: list[Case], night: int) -> None:
    binary = "true" if form == "binary" else "false"
    server.recvlogical("slot", job.landing / f"{night}.bin", publications=["p"], binary=binary)
    configured = {name: text for case in columns for name, text in case.configured.items()}
    summary = job.run(*(f"types.{name}={text}" for name, text in configured.items()))
    assert summary.exit_code == 0, [table.held for table in summary.tables]


def create(server: Server, columns: list[Case]) -> None:
    definitions = [sql.SQL("{} {}").format(sql.Identifier(case.type), sql.SQL(case.type)) for case in columns]
    with server.connect() as connection:
        body = sql.SQL(", ").join([sql.SQL("id int primary key"), *definitions])
        connection.execute(sql.SQL("create table matrix ({})").format(body))
        connection.execute("create publication p for table matrix")


def fill(server: Server, columns: list[Case]) -> None:
    """Row n has the n-th value of each type, or NULL if the type has fewer; the last row has only NULLs."""
    written = sql.SQL(", ").join([sql.SQL("%s"), *(sql.SQL(case.written) for case in columns)])
    count = max(len(case.values) for case in columns)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            sql.SQL("insert into matrix values ({})").format(written),
            [[n, *(case.values[n] if n < len(case.values) else None for case in columns)] for n in range(count + 1)],
        )


def truth_of(server: Server, columns: list[Case], form: Form) -> dict[int, Row]:
    names = [sql.Identifier(case.type).as_string() for case in columns]
    expressions = ["id", *(case.truth(name, form) for case, name in zip(columns, names, strict=True))]
    expressions += [case.kept_text(name, form) for case, name in zip(columns, names, strict=True)]
    with server.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        rows = connection.execute(f"select {', '.join(expressions)} from matrix".encode()).fetchall()
    truth = {}
    for number, *texts in rows:
        values, odd = texts[: len(columns)], texts[len(columns) :]
        row = {
            case.type: json.loads(value) if case.is_array and value is not None else value
            for case, value in zip(columns, values, strict=True)
        }
        truth[number] = row, {case.type: text for case, text in zip(columns, odd, strict=True) if text is not None}
    return truth


def columns_of_types(server: Server) -> dict[str, str]:
    query = """
        select t.typname, coalesce(min(a.attname), '') from pg_type t
        left join pg_type d on t.oid in (d.oid, d.typbasetype)
        left join pg_attribute a on a.atttypid = d.oid and a.attrelid = 'matrix'::regclass
        where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype in ('b', 'r', 'm')
          and coalesce((select typtype from pg_type e where e.oid = t.typelem), 'b') in ('b', 'r', 'm')
        group by 1
    """
    with server.connect() as connection:
        return dict(connection.execute(query).fetchall())


def read_by_spark(path: Path, spark: SparkSession) -> pa.Table:
    return spark.read.format("delta").load(str(path)).toArrow()


def read_by_rust(path: Path, _spark: SparkSession) -> pa.Table:
    return pa.table(DeltaTable(path).scan().read_all())


def rows_of(table: pa.Table, columns: list[Case]) -> dict[int, Row]:
    values = {case.type: values_of(table.column(case.type), case) for case in columns}
    odd = [dict(entries or []) for entries in table.column("_pg_unrepresentable").to_pylist()]
    numbers = table.column("id").to_pylist()
    assert len(set(numbers)) == len(numbers)
    return {n: ({name: cells[i] for name, cells in values.items()}, odd[i]) for i, n in enumerate(numbers)}


def values_of(column: pa.ChunkedArray, case: Case) -> list[Any]:
    array = pa.concat_arrays(column.chunks)
    if not case.is_array:
        return [*case.kind.texts(array)]
    elements = iter(case.kind.texts(array.flatten()))
    lengths = [None if value is None else len(value) for value in array.to_pylist()]
    return [None if length is None else [next(elements) for _ in range(length)] for length in lengths]


def differences(expected: dict[int, Row], actual: dict[int, Row]) -> Iterator[str]:
    for number, (values, odd) in expected.items():
        for name, value in values.items():
            have = actual[number][0][name], actual[number][1].get(name)
            if have != (value, odd.get(name)):
                yield f"{name}, row {number}: server {(value, odd.get(name))!r:.300}, here {have!r:.300}"


@pytest.mark.parametrize("read", [read_by_spark, read_by_rust])
def test_every_value_equals_the_servers(
    matrix: Matrix, spark: SparkSession, read: Callable[[Path, SparkSession], pa.Table]
) -> None:
    rows = rows_of(read(matrix.path, spark), matrix.cases)
    assert rows.keys() == matrix.truth.keys()
    different = list(differences(matrix.truth, rows))
    assert not different, "\n".join([f"{len(different)} values", *different[:40]])


def test_the_driver_verifies_the_texts_that_spark_does(matrix: Matrix, spark: SparkSession) -> None:
    config = matrix.job.loaded()
    ledger = DeltaLedger.of(spark, config)
    last = applied(ledger.batches.last(), ledger.source)
    types = DeltaArchive.of(spark, config, ledger, last).user_types
    [state] = last.tables.values()
    side, described = DeltaSide.stored(spark, state, types), table_columns(state.relation, state.retired, types)
    assert side.small is None, "it has columns of two forms, which are left out here"
    columns = [ComparedColumn(column.name, column.type) for column in described if not has_two_forms(column.type)]
    assert len(columns) > 200
    files = open_files(spark, state.path, SMALL_BYTES)
    assert files is not None
    parquet, kinds = pq.read_schema(pa.BufferReader(files.read(files.files[0]))), kinds_of(described)
    names = {
        f["name"]: f["metadata"].get("delta.columnMapping.physicalName", f["name"]) for f in files.schema["fields"]
    }
    stored = {
        name: StoredColumn(physical, kinds[name][1] if name in kinds else parquet.field(physical).type, None)
        for name, physical in names.items()
    }
    rows = SmallTable(files, stored).rows()
    assert rows is not None
    theirs = delta_texts(side.current, columns).toArrow()
    ours = pa.Table.from_batches(small_texts(rows, columns))
    assert ours.sort_by("t0").equals(theirs.sort_by("t0"))


def test_every_column_has_the_delta_type_of_its_type(matrix: Matrix, spark: SparkSession) -> None:
    fields = spark.read.format("delta").load(str(matrix.path)).schema
    types = {field.name: field.dataType.simpleString() for field in fields if field.name[:1] != "_"}
    assert types == {"id": "int", **{case.type: case.delta for case in matrix.cases}}


def test_every_built_in_type_is_covered(matrix: Matrix) -> None:
    missing = {name for name, column in matrix.built_in_types.items() if not column}
    assert missing - NO_VALUES - {f"_{name}" for name in NO_VALUES} <= {"_aclitem"}


def test_the_values_include_unrepresentable_ones(matrix: Matrix) -> None:
    """Otherwise the comparison would prove little."""
    kept = {name for _values, odd in matrix.truth.values() for name in odd}
    assert {"date", "timestamp", "timestamptz", "numeric(10,2)", "numbers", "text[]", "date[]"} <= kept
    assert "float8" not in kept
