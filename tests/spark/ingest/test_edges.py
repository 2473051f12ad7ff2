"""Edge cases of the protocol in real runs: names, columns and skipped tables across nights."""

from __future__ import annotations

import pytest

from pgoutput_etl.errors import RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.load import writer
from pgoutput_etl.protocol.messages import Prepare
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.support.jobs import Nights, held, summary_text
from tests.support.small_archives import (
    commit_prepared,
    insert,
    prepared,
    rollback_prepared,
    table,
    transaction,
)

pytestmark = pytest.mark.spark
A, B, C = 1, 2, 3


@pytest.mark.soak  # the season has a rename and a rolled-back column; real archives have prepared transactions
def test_names_paths_and_columns_follow_committed_changes(nights: Nights) -> None:
    a, b = table(oid=A, name="a"), table(oid=B, name="b")
    c, wide = table(oid=C, name="c"), table("id", "v", "w", oid=C, name="c")
    changes = transaction(6, 40, insert("2", "before", oid=C), wide, insert("3", "after", "w", oid=C))
    begun, end = changes[:-1], changes[-1:]
    nights.night(
        transaction(3, 10, a, insert("1", "of a", oid=A)),
        transaction(4, 20, b, insert("1", "of b", oid=B)),
        transaction(5, 30, c, insert("1", "first", oid=C)),
        begun,
    )
    # A night describes columns that the next one commits; a prepared transaction swaps names; PostgreSQL 18 prepares an
    # empty one.
    swap = prepared(7, table(oid=A, name="b"), insert("2", "of a", oid=A), lsn=45)
    summary = nights.night(end, swap, [Prepare(46, 47, 0, 8, "gid-8")])
    assert (held(summary), summary.exit_code) == ({}, EXIT_DONE)
    assert nights.values("c") == [("1", "first", None), ("2", "before", None), ("3", "after", "w")]
    late = table("id", "v", "w", "x", oid=C, name="c")
    summary = nights.night(
        commit_prepared(8, 50),
        transaction(9, 60, insert("2", "of b", oid=B)),
        rollback_prepared(7),
        prepared(10, late, insert("4", "late", "w", "x", oid=C), lsn=35),  # prepared before two_phase was on
        commit_prepared(10, 70),
    )
    assert (held(summary), summary.exit_code, summary.unknown_prepared) == ({}, EXIT_DONE, 0)
    assert nights.values("a") == [("1", "of a")]
    assert nights.values("b") == [("1", "of b"), ("2", "of b")]
    assert ("4", "late", "w", "x") in nights.values("c")


@pytest.mark.soak  # tests/core/targets/test_nights.py tests it without Spark
def test_a_skipped_table_is_held_until_it_is_rebuilt(nights: Nights) -> None:
    skip = "tables=[{match: public.t, skip: true}]"
    nights.night(transaction(3, 10, table(), insert("1", "a")))
    nights.land(transaction(4, 20, insert("2", "b")))
    summary = nights.job.run(skip)
    assert (summary.skipped, summary.exit_code, held(summary)) == (("public.t",), EXIT_DONE, {})
    summary = nights.night(transaction(5, 30, insert("3", "c")))
    assert summary.exit_code == EXIT_QUARANTINE
    assert held(summary)["t"].endswith("skipped it: rebuild it from the archive")
    assert nights.values("t") == [("1", "a")]
    nights.job.backfill(BackfillRequest(("public.t",)))
    assert nights.values("t") == [("1", "a"), ("2", "b"), ("3", "c")]
    assert nights.night(transaction(6, 40, insert("4", "d"))).exit_code == EXIT_DONE
    assert len(nights.values("t")) == 4


@pytest.mark.soak
def test_a_commit_without_its_prepare_is_refused_unless_files_are_numbered(nights: Nights) -> None:
    nights.night(transaction(3, 10, table(), insert("1", "a")))
    summary = nights.night(commit_prepared(98, 15), transaction(4, 20, insert("2", "b")))
    assert (summary.unknown_prepared, summary.exit_code) == (1, EXIT_DONE), "no number is missing"
    nights.land(commit_prepared(99, 25), transaction(5, 30, insert("3", "c")), name="later.copydata")
    summary = nights.job.run()
    assert summary.exit_code == EXIT_QUARANTINE
    assert "Possibly missing: transaction 99, prepared as 'gid-99' and committed at 0/19" in summary_text(summary)
    assert len(nights.values("t")) == 3
    nights.land(commit_prepared(97, 35), name="latest.copydata")
    assert nights.job.run("source.gaps=accept").exit_code == EXIT_DONE


@pytest.mark.soak
def test_a_batch_is_not_resumed_with_another_configuration(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.night(transaction(3, 10, table(), insert("1", "a")))

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    nights.land(transaction(4, 20, insert("2", "b")))
    with monkeypatch.context() as patched:
        patched.setattr(writer.Writer, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            nights.job.run()
    with pytest.raises(RunError, match="batch 2 was begun under another configuration by a run that died: origins"):
        nights.job.run("source.origins=none")
    with pytest.raises(RunError, match=r"tables, for public\.t\. .*configuration (back )?for this run"):
        nights.job.run("tables=[{match: public.t, rename: other.t}]")
    assert nights.job.run().exit_code == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "b")]
