"""Real archives, replayed without Spark: versions match the mirror as of each commit, and current rows the server's."""

from __future__ import annotations

import pytest

from pgoutput_etl.targets.modes import METADATA_COLUMNS
from tests.archives.test_replay import ARCHIVES, Step
from tests.support.captures import NEVER_SENT_VALUES, ignored_columns, truth_tables
from tests.support.kept_rows import as_of, counted
from tests.support.modes_reference import table_histories
from tests.support.replays import replay_of
from tests.support.truth import assert_equals_truth

QUICK = {"random16-v4b"}
CASES = [pytest.param(ARCHIVES[n], id=n, marks=() if n in QUICK else pytest.mark.soak) for n in ARCHIVES]
SAMPLES = 6


@pytest.mark.parametrize("steps", CASES)
def test_versions_equal_the_mirror_as_of_each_commit(steps: list[Step]) -> None:
    replay = replay_of(*(path for files, _ in steps for path in files))
    truth = steps[-1][1]
    histories, holders = table_histories(replay), replay.name_holders()
    for table in truth_tables(truth):
        oid = holders.get((table.schema, table.name), 0)
        current = (
            [row for row in histories[oid].versions if row["_pg_valid_to_lsn"] is None] if oid in histories else []
        )
        never_sent = NEVER_SENT_VALUES.get(table.full_name)
        assert_equals_truth(current, table.truth, ignored_columns(truth.parent.name), never_sent)
        if oid in histories and histories[oid].latest is not None:
            living = [row for row in histories[oid].latest or () if not row["_pg_deleted"]]
            assert_equals_truth(living, table.truth, ignored_columns(truth.parent.name), never_sent)

    commits = sorted({row["commit_lsn"] for row in replay.committed()})
    compared = 0
    for lsn in commits[:: max(1, len(commits) // SAMPLES)]:
        for oid, mirror in replay.tables(until=lsn).items():
            if mirror.shape.columns == histories[oid].shape.columns:
                names = [*(column.name for column in mirror.shape.columns), *METADATA_COLUMNS]
                assert counted(as_of(histories[oid].versions, lsn), names) == counted(mirror.rows, names), (oid, lsn)
                compared += len(mirror.rows)
    assert compared > 100
