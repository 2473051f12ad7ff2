"""The job reads plain files only, and names everything else that stands in the landing folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ingest import landing_folder
from pgoutput_etl.ingest.binary_files import scan_files
from pgoutput_etl.work.plan.run import plan
from tests.support.jobs import Nights, summary_text
from tests.support.small_archives import copydata, insert, table, transaction

pytestmark = pytest.mark.spark

SECRET = b"a key that only this user may read"


def test_links_and_fifos_are_named_and_not_read(nights: Nights, tmp_path: Path) -> None:
    landing, secret = nights.job.landing, tmp_path / "home" / "id_rsa"
    secret.parent.mkdir()
    secret.write_bytes(copydata(transaction(1, 100, table(), insert("1", "a")))[:-20] + SECRET)
    nights.land(transaction(2, 200, table(), insert("2", "b")))
    (landing / "001.copydata").symlink_to(secret)
    (landing / "folder").symlink_to(secret.parent)
    (landing / "circle").symlink_to(landing)
    os.mkfifo(landing / "002.copydata")

    planned = plan(nights.job.spark, nights.job.loaded(), lambda _: None)
    assert (planned.exit_code, len(planned.files), len(planned.refused_files)) == (EXIT_QUARANTINE, 1, 4)
    summary = nights.job.run()
    assert (summary.exit_code, summary.files, summary.damages) == (EXIT_QUARANTINE, 1, ())
    assert nights.values("t") == [("2", "b")]
    text = summary_text(summary)
    for name, kind in (("001.copydata", "link"), ("folder", "link"), ("circle", "link"), ("002.copydata", "FIFO")):
        assert any(f"{landing}/{name}: " in line and kind in line for line in text.splitlines())
    again = nights.job.run()
    assert (again.exit_code, again.refused_files) == (EXIT_QUARANTINE, summary.refused_files)
    found = status(nights.job.loaded(), StatusRequest())
    assert (found.exit_code, set(found.quarantine.refused_files)) == (EXIT_QUARANTINE, set(summary.refused_files))
    assert not [row for row in nights.ledger("quarantine") if row["bytes"]]

    for name in ("001.copydata", "folder", "circle", "002.copydata"):
        (landing / name).unlink()
    assert nights.job.run().exit_code == EXIT_DONE


@pytest.mark.parametrize("replaced", ["file", "folder"])
def test_a_file_that_becomes_a_link_after_it_was_listed_is_not_read(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    landing, secret = nights.job.landing, tmp_path / "home" / "000.copydata"
    secret.parent.mkdir()
    secret.write_bytes(SECRET)
    (landing / "sub").mkdir()
    path = nights.land(transaction(1, 100, table(), insert("1", "a")), name="sub/000.copydata")

    def replaced_then(*arguments: object) -> object:
        if replaced == "file":
            path.unlink()
            path.symlink_to(secret)
        else:
            path.parent.rename(tmp_path / "before")
            path.parent.symlink_to(secret.parent)
        return scan_files(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(landing_folder, "scan_files", replaced_then)
    with pytest.raises(ArchiveError, match=r"000\.copydata: expected a plain file"):
        nights.job.run()
    assert nights.ledger("quarantine") == []


def test_the_landing_folder_itself_may_be_a_link(nights: Nights, tmp_path: Path) -> None:
    (tmp_path / "mount").symlink_to(nights.job.landing)
    nights.land(transaction(1, 100, table(), insert("1", "a")))
    assert nights.job.run(f"source.landing={tmp_path}/mount").exit_code == EXIT_DONE
    assert nights.values("t") == [("1", "a")]
