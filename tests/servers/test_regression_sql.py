"""PostgreSQL's own regression SQL, if POSTGRES_SQL names its folder: no table has a wrong row without a word.

All tables have a primary key or REPLICA IDENTITY FULL. After each of two nights, each table equals the server's, is
named by the job, or shows a limit that docs/schema-changes.md documents. In memory, with catalog Messages and without
them, from two servers. `make soak` prints the counts as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs import Job
from tests.support.judged_targets import JobTarget, JudgedTarget, in_memory
from tests.support.servers.documented_limits import LIMITS
from tests.support.servers.judged_database import CATALOG_KEY
from tests.support.servers.postgres import Server
from tests.support.servers.regression_sql import RegressionFile, create_template, regression_files, statements
from tests.support.verdicts import Judgment, Verdict
from tools.soak import COUNTS

pytestmark = pytest.mark.e2e

FILES = [pytest.param(file, id=file.path.stem) for file in regression_files()]
Record = Callable[[str, object], None]


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    [folder] = {file.path.parent for file in regression_files()}
    with Server(request.param) as running:
        create_template(running, tmp_path_factory.mktemp("template"), folder)
        yield running


@pytest.mark.soak
@pytest.mark.parametrize("has_catalog", [False, True])
@pytest.mark.parametrize("file", FILES)
def test_a_file_in_memory(
    file: RegressionFile, has_catalog: bool, server: Server, tmp_path: Path, landing: Path, record_property: Record
) -> None:
    target = in_memory(tmp_path, landing, "[]", ["source.catalog_key=${CATALOG_KEY}"], {"CATALOG_KEY": CATALOG_KEY})
    assert_right_or_reported(file, server, tmp_path, target, record_property, has_catalog)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("server", [16], indirect=True)
@pytest.mark.parametrize("file", FILES)
def test_a_file_through_the_job(
    file: RegressionFile, server: Server, tmp_path: Path, landing: Path, spark: SparkSession, record_property: Record
) -> None:
    target = JobTarget(Job(spark, tmp_path, landing))
    assert_right_or_reported(file, server, tmp_path, target, record_property)


def assert_right_or_reported(
    file: RegressionFile,
    server: Server,
    folder: Path,
    target: JudgedTarget,
    record_property: Record,
    has_catalog: bool = False,
) -> None:
    nights = file.judged_nights(server, folder, folder / "landing", target, has_catalog)
    title = f"{type(target).__name__} {server.version}{', catalog Messages' if has_catalog else ''}"
    record_property(COUNTS, json.dumps({f"{title}: {name}": count for name, count in counted(nights).items()}))
    wrong = [
        f"night {number}, {name}: {judgment.difference}"
        for number, night in enumerate(nights, start=1)
        for name, judgment in night.items()
        if judgment.verdict is Verdict.OTHER
    ]
    assert wrong == [], "\n".join(wrong)


def counted(nights: list[dict[str, Judgment]]) -> Counter[str]:
    """Tables by their worst verdict, those that are said also by documented limit. never_any_rows: equal tables that
    are empty after each night. said_of_equal: equal tables that the job names."""
    counts: Counter[str] = Counter({verdict.value: 0 for verdict in Verdict})
    for name in {name for night in nights for name in night}:
        judgments = [night[name] for night in nights if name in night]
        verdicts = {judgment.verdict for judgment in judgments}
        worst = next(v for v in (Verdict.OTHER, Verdict.REPORTED, Verdict.EQUAL) if v in verdicts)
        counts[worst.value] += 1
        counts.update({f"said: {j.limit}" for j in judgments if worst is Verdict.REPORTED and j.limit})
        counts["never_any_rows"] += worst is Verdict.EQUAL and not any(judgment.rows for judgment in judgments)
        counts["said_of_equal"] += any(j.is_reported and not j.difference for j in judgments)
    return counts


def test_a_script_is_divided_where_statements_end() -> None:
    parts = [
        "select ';' as \"a;b\", E'\\';', $$;$$, $f$;$$;$f$;",
        " -- a; comment\n/* ; */ create rule r as on insert to t do (select 1; select 2);",
        "\ncopy t from stdin;\n1;\n2;\n\\.\n",
        "\\if :x\nselect 1;\n\\endif\nselect 2;",
        "create function f() begin atomic select 1; select 2; end;",
        "\n",
    ]
    assert list(statements("".join(parts))) == parts


def test_excused_differences_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/schema-changes.md").read_text(encoding="utf-8")
    words = " ".join(page.replace("*", "").replace("`", "").split())
    assert [limit for limit in LIMITS if limit not in words] == []
