"""The archive of Spark's classes, without a JVM: tests/spark/test_installed_command.py has one."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from pgoutput_etl.spark import class_archive
from pgoutput_etl.spark.class_archive import class_options, keep_classes

VERSION = 'openjdk version "17.0.15"'


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the archives."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return tmp_path / "kept" / "pgoutput_etl"


def start(kept: Path, version: str = VERSION, options: str = "") -> str:
    return " ".join(class_options(str(kept.parents[1] / "spark"), version, options))


def keep(kept: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Starts a JVM that ends with an apply; returns what it says. It has the properties of its options."""
    wanted = re.search('-Dpgoutput_etl.classes="(.+?)"', start(kept))
    monkeypatch.setattr(class_archive, "_wanted", lambda: Path(wanted[1]) if wanted else None)
    said: list[str] = []
    keep_classes(said.append)
    return said


def dump(file: str) -> None:
    Path(file).write_bytes(b"classes")
    Path(file).chmod(0o444)


def test_the_second_start_writes_what_the_third_one_uses(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_dump", dump)

    assert keep(kept, monkeypatch) == []
    (archive,) = kept.iterdir()
    assert archive.read_bytes() == b""

    assert len(keep(kept, monkeypatch)) == 1
    assert list(kept.iterdir()) == [archive]

    assert f'-XX:SharedArchiveFile="{archive}"' in start(kept)
    assert keep(kept, monkeypatch) == []


def test_other_versions_of_java_and_spark_have_archives_of_their_own(kept: Path) -> None:
    start(kept)
    start(kept, 'openjdk version "21.0.1"')
    (kept.parents[1] / "spark" / "jars" / "new.jar").touch()
    os.utime(kept.parents[1] / "spark" / "jars", (0, 0))
    start(kept)
    assert len(list(kept.iterdir())) == 3


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine"])
def test_a_users_own_choice_counts(kept: Path, option: str) -> None:
    assert start(kept, options=f"-Xmx1g {option}") == ""
    assert not kept.exists()


def test_without_a_folder_java_starts_as_ever(kept: Path) -> None:
    kept.parent.write_text("a file", encoding="utf-8")
    assert start(kept) == ""
    assert start(kept) == ""


def test_an_archive_that_cannot_be_written_leaves_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: str) -> None:
        dump(file)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(class_archive, "_dump", fail)
    start(kept)
    keep(kept, monkeypatch)
    assert [file.stat().st_size for file in kept.iterdir()] == [0]


def test_archives_that_nobody_uses_are_deleted(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_dump", dump)
    kept.mkdir(parents=True)
    for name, days in (("classes-old.jsa", 31), ("classes-used.jsa", 29), ("kernel.nbc", 99)):
        (kept / name).touch()
        os.utime(kept / name, (0, time.time() - days * 24 * 3600))
    start(kept)
    keep(kept, monkeypatch)
    assert {file.name for file in kept.iterdir()} >= {"classes-used.jsa", "kernel.nbc"}
    assert not (kept / "classes-old.jsa").exists()
