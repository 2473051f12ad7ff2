"""`init` writes a configuration that loads, whatever the names are, and states only what the archive shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.answers.init.configuration import configuration, quoted, server_configuration, source_name
from pgoutput_etl.answers.init.findings import ArchiveFindings, TableFindings, sample
from pgoutput_etl.config.rule_merge import Rules
from pgoutput_etl.config.settings import Config, Gaps, Snapshots, load_config
from pgoutput_etl.jobs import init as command
from pgoutput_etl.jobs.init import COMMAND
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.places import absolute_place
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.schema.layout import Readers
from tests.support.captures import DATA
from tests.support.small_archives import copydata, insert, table, transaction

FULL = TableFindings("public", "t", ("id", "note"), (), True, (("note", "jsonb"),))
FINDINGS = ArchiveFindings(1, 1, ("copydata",), (FULL,), False, (), ())

HOSTILE = [
    "a\nb", "a: b", "a # b", "'", '"', "- a", "{a}", "[a]", "a*b?", "${HOME}", "$${a", "null", "true", "1", " a ",
    "# tables:", "a\u2028b", "\u00e9\U0001f600", "\x01\x7f\x85\ufeff", "a\tb", "%a", "@a", "!a", "&a", "*a", "`a`",
]  # fmt: skip

names = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


def loaded(text: str, folder: Path) -> Config:
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8", newline="")
    return load_config(str(file), environ={})


def uncommented(text: str) -> str:
    """The file with the rules in force, as its comment says."""
    before, heading, rules = text.partition("# tables:\n")
    assert heading
    return before + re.sub("^# ", "", heading + rules, flags=re.MULTILINE)


def run(*arguments: str | Path) -> int:
    return COMMAND.main("init", [*map(str, arguments), "--quiet"])


@given(names.filter(bool), names.filter(bool), names.filter(bool))
def test_every_name_is_quoted(tmp_path_factory: pytest.TempPathFactory, schema: str, name: str, column: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    hostile = replace(FULL, schema=schema, table=name, columns=(column, "b"), as_text=((column, "jsonb"),))
    keyed = replace(hostile, table=f"{name} too", is_full=False, key=(column,))
    lines = (name, column)
    findings = replace(FINDINGS, tables=(hostile, keyed), missing=lines, unreadable=lines)
    text = configuration(f"./{schema}", "shop", findings)

    config = loaded(text, folder)
    assert (config.source.landing, config.tables) == (absolute_place(f"./{schema}"), ())

    (rule,) = loaded(uncommented(text), folder).tables
    assert rule.key == (column,)
    assert loaded(uncommented(text), folder).rule_for(schema, name) == rule
    assert loaded(uncommented(text), folder).rule_for(schema, f"{name} too").key is None


def test_init_and_start_write_rules_that_merge_and_readers(tmp_path: Path) -> None:
    for text in (configuration("./in", "shop", FINDINGS), server_configuration("./in", "shop", [FULL], None)):
        config = loaded(text, tmp_path)
        assert (config.rules, config.target.readers) == (Rules.MERGE, Readers.AUTO)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_quoted_name_is_one_line(text: str) -> None:
    assert len(quoted(text).splitlines()) == 1


def test_the_facts_of_an_archive(tmp_path: Path) -> None:
    out = tmp_path / "shop.yaml"
    assert run(DATA / "pg16" / "v1", "--out", out) == 0
    text = out.read_text(encoding="utf-8")
    config = loaded(text, tmp_path)
    assert (config.source.framing, config.source.gaps, config.tables) == (Framing.COPYDATA, Gaps.REFUSE, ())
    assert config.source.snapshot is Snapshots.MANUAL
    assert "\n  snapshot: manual  # exit code 3 until the rows from before the archive are loaded" in text
    assert "\n#   public.pk2: key [a, b]\n" in text
    assert "\n#   public.fullri: REPLICA IDENTITY FULL\n" in text
    assert "\n#   public.nothing_ins: no key: " in text
    assert '\n#   "public.Weird Name": key [Id]\n' in text
    assert "c_num_50_20" in text
    assert "c_mood public.mood" in text
    assert "c_int4 " not in text
    rules = loaded(uncommented(text), tmp_path).tables
    assert [rule.match for rule in rules] == ["public.fullri", "public.toastfull"]


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["1.bin", "2.bin", "3.bin"], "gaps: refuse  # the files are numbered"),
        (["a.bin", "x.bin"], "gaps: refuse  # the files are not numbered"),
        (["1.bin", "2.bin", "3.bin", "5.bin"], "4.bin"),
    ],
)
def test_numbered_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[str], line: str) -> None:
    for n, name in enumerate(files):
        relation = [table()] if n == 0 else []
        (tmp_path / name).write_bytes(copydata(transaction(n + 1, 100 * (n + 1), *relation, insert(str(n)))))
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    if line == "4.bin":
        assert re.search(r"  # .*3\.bin and .*5\.bin a file is missing", printed)
    else:
        assert line in printed


def test_a_table_that_was_created_again_is_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = table(identity=ReplicaIdentity.FULL)
    (tmp_path / "1.bin").write_bytes(copydata(transaction(1, 100, first, insert("1"))))
    (tmp_path / "2.bin").write_bytes(copydata(transaction(2, 200, replace(table(), oid=99999))))
    assert run(tmp_path) == 0
    assert capsys.readouterr().out.count("public.t:") == 1


@pytest.mark.parametrize(
    ("root_key", "leaf_key", "identity", "comment", "rule"),
    [
        ((), ("id",), ReplicaIdentity.DEFAULT, "its first UPDATE or DELETE holds it: ", "key: [id]"),
        (("id", "v"), ("id",), ReplicaIdentity.DEFAULT, "its first UPDATE or DELETE holds it: ", "key: [id]"),
        ((), (), ReplicaIdentity.FULL, "REPLICA IDENTITY FULL", "key: [id]  # not known"),
        (("id",), (), ReplicaIdentity.FULL, "key [id]", None),
        (("id",), ("id", "v"), ReplicaIdentity.DEFAULT, "key [id]", None),
    ],
)
def test_a_root_is_listed_with_its_partitions_identities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], root_key: tuple[str, ...], leaf_key: tuple[str, ...],
    identity: ReplicaIdentity, comment: str, rule: str | None,
) -> None:  # fmt: skip
    leaf = table(oid=99999, name="leaf", key=leaf_key, identity=identity)
    (tmp_path / "1.bin").write_bytes(copydata(transaction(1, 100, table(key=root_key), leaf, insert("1", "x"))))
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert f"#   public.t: {comment}" in printed
    assert "public.leaf:" not in printed
    assert (rule in printed) if rule else ("key: [" not in printed)


def test_an_unreadable_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1.bin").write_bytes(copydata(transaction(1, 100, table(), insert("1"))))
    (tmp_path / "2.bin").write_bytes(b"not an archive\n" * 9)
    assert run(tmp_path) == 3
    printed = capsys.readouterr().out
    assert "# Can't be read: " in printed
    assert "public.t" in printed


def test_of_a_big_archive_the_newest_and_the_first_files_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 10):
        relation = replace(table(), oid=n, name=f"t{n}")
        (tmp_path / f"{n}.bin").write_bytes(copydata(transaction(n, 100 * n, relation)))
    monkeypatch.setattr(command, "SAMPLED_BYTES", 3 * (tmp_path / "1.bin").stat().st_size)
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "from 3 of 9 files" in printed
    assert re.findall(r"public\.(t\d)", printed) == ["t1", "t8", "t9"]
    assert "the files are numbered" in printed


def test_a_sample_has_both_ends_even_of_big_files() -> None:
    files = [LandedFile(f"{n}.bin", 10, 0) for n in (2, 10, 1)]
    assert [file.path for file in sample(files, 1)] == ["10.bin", "1.bin"]
    assert [file.path for file in sample(files[:1], 1)] == ["2.bin"]
    assert len(sample(files, 30)) == 3


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shop.yaml"
    out.write_text("mine")
    assert run(DATA / "random16" / "v2", "--out", out) == 2
    assert "shop.yaml exists: name another file, or replace it with --force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert run(DATA / "random16" / "v2", "--out", out, "--force") == 0
    assert loaded(out.read_text(), tmp_path).source.name == "v2"


@pytest.mark.parametrize(
    ("landing", "message"),
    [
        ("s3a://lake/shop", "expected a local folder"),
        ("nothing", "does not exist"),
        (".", "expected one or more landed files"),
    ],
)
def test_a_refused_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    landing: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(landing) == 2
    assert message in capsys.readouterr().err


def test_a_file_in_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DATA / "random16" / "v2", "--out", tmp_path / "no" / "shop.yaml") == 2
    assert "can't be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("landing", "name"),
    [
        ("landing/shop", "shop"),
        ("./landing/my shop/", "my_shop"),
        ("landing/shop/*.bin.gz", "shop"),
        ("landing/shop/{a,b}", "shop"),
        (".", "source"),
        ("/", "source"),
        ("landing/é", "landing"),
    ],
)
def test_the_source_has_the_folders_name(landing: str, name: str) -> None:
    assert source_name(landing) == name
