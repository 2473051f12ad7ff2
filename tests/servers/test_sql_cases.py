"""Changes that the messages do not say everything about: after every night, each table equals the server's or is named.

All tables are complete, so that a wrong row is found, and not only that earlier rows may be missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs import Job
from tests.support.judged_targets import JobTarget, JudgedTarget, in_memory
from tests.support.servers.postgres import Servers
from tests.support.servers.sql_cases import SqlCase, all_cases
from tests.support.verdicts import Verdict

pytestmark = pytest.mark.e2e

# The cases with a table that differs from the server's without a word, by cause. A case that no longer has one fails.
_CAUSES = {
    "the server changes values without sending them": "composite_attribute generated_drop_expression regclass_rename",
    "a table takes another's name without a row": "staging_swap staging_swap_masked",
    "the sender rounds values": "float_digits",
    "a domain's modifier is not sent, as the summary says": "domain_modifier",
}
_WRONG = {name: cause for cause, names in _CAUSES.items() for name in names.split()}
ONLY_THE_JOB = dict.fromkeys(
    (
        *("ascii_values", "binary_composite_of_domain", "key_not_unique", "key_retype_uncertain"),
        *("pk_only_generated", "underscore_types"),
    ),
    "only the job holds a table with its reason",
)
WRONG_IN_MEMORY = {**_WRONG, **ONLY_THE_JOB}
# In memory, a root is incomplete, as nothing shows that it was created empty.
WRONG_THROUGH_THE_JOB = {
    **_WRONG,
    "via_root_detach": "no message names a detached partition before it has a row of its own",
}
IN_CI = {"binary_composite_of_domain", "pk_only_generated"}


def cases(wrong: dict[str, str], in_ci: set[str] | None = None, has_catalog: bool = False) -> list[Any]:
    parameters = []
    for case in all_cases():
        if "catalog" in case.flags and not has_catalog:
            continue
        marks = [] if in_ci is None or case.name in in_ci else [pytest.mark.soak]
        if case.name in wrong:
            marks.append(pytest.mark.xfail(strict=True, raises=AssertionError, reason=wrong[case.name]))
        parameters.append(pytest.param(case, id=case.name, marks=marks))
    return parameters


@pytest.mark.parametrize("case", cases(WRONG_IN_MEMORY))
def test_a_case_in_memory(case: SqlCase, servers: Servers, tmp_path: Path, landing: Path) -> None:
    assert_right_or_reported(case, servers, landing, in_memory(tmp_path, landing, case.rules))


@pytest.mark.spark
@pytest.mark.parametrize("case", cases(WRONG_THROUGH_THE_JOB, IN_CI))
def test_a_case_through_the_job(
    case: SqlCase, servers: Servers, tmp_path: Path, landing: Path, spark: SparkSession
) -> None:
    job = Job(spark, tmp_path, landing, [f"tables={case.rules}"])
    assert_right_or_reported(case, servers, landing, JobTarget(job))


def assert_right_or_reported(case: SqlCase, servers: Servers, landing: Path, target: JudgedTarget) -> None:
    for number, judgments in enumerate(case.judged_nights(servers(case.version), landing, target), start=1):
        wrong = {
            name: judgment.difference
            for name, judgment in judgments.items()
            if judgment.verdict is Verdict.OTHER or (judgment.difference and name in case.right)
        }
        assert wrong == {}, f"night {number}"
        assert case.right <= judgments.keys()
