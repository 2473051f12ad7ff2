"""The commands that resolve what a run reports."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pgoutput_etl.answers.next_commands import Findings, inspected, next_commands, next_lines
from pgoutput_etl.cli import command
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.errors import ArchiveError, RunError, SequenceError
from pgoutput_etl.landing.selection import LEFT_UNREAD
from pgoutput_etl.reasons import TORN, Reason, ReasonKind
from pgoutput_etl.targets.condition import ConditionKind, TableCondition
from pgoutput_etl.targets.plan import WAS_SKIPPED
from pgoutput_etl.work.files.report import RunReport, RunSummary

KEY_IS_NEW = Reason("key column b is new", ReasonKind.ON_SERVER)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "my shop.yaml"
    path.write_text("source: {name: shop, landing: /landing}\ntarget: {root: ./warehouse}\n", encoding="utf-8")
    return load_config(str(path))


INCOMPLETE = TableCondition(1, "public", "t", ConditionKind.INCOMPLETE, "why", 100)
PAST = TableCondition(2, "public", "past", ConditionKind.INCOMPLETE, "why", 100, mode="history")
DIVERGED = TableCondition(3, "public", "d", ConditionKind.DIVERGED, "why", 100, can_be_repaired=True)
BAG = TableCondition(4, "public", "bag", ConditionKind.DIVERGED, "why", 100)
REWRITTEN = [replace(one, state=ConditionKind.REWRITTEN) for one in (DIVERGED, BAG)]
AMBIGUOUS = TableCondition(5, "public", "a", ConditionKind.AMBIGUOUS, "why", 100)
SERVER = "--server postgresql://HOST:5432/DATABASE"
STATES = {
    "held": (Findings({"public.t": "its name is empty"}), ["backfill --from-quarantine"]),
    "the name of a column": (
        Findings(dict.fromkeys(("public.t", "a.b"), Reason("a column name is empty", ReasonKind.COLUMN_NAME))),
        [f"snapshot --tables a.b,public.t {SERVER} "],
    ),
    "only on the server": (
        Findings({"public.t": KEY_IS_NEW, "odd.a,b [x]": KEY_IS_NEW}),
        ["snapshot --tables 'odd.a?b [[]x],public.t' --server postgresql://HOST:5432/DATABASE"],
    ),
    "both": (Findings({"a.b": KEY_IS_NEW, "a.c": "its name is empty"}), ["backfill --from-quarantine", "snapshot "]),
    "unreadable bytes": (Findings({"a.b": "transaction 1 …"}, ["a.bin: 1 byte"], 1), ["backfill --from-quarantine"]),
    "sent again": (Findings({}, [Reason(f"a.bin: 5 bytes{TORN}", ReasonKind.TORN)]), []),
    "left unread": (Findings({}, refused_files=[f"a.bin{LEFT_UNREAD}"]), ["backfill --from-quarantine"]),
    "other content": (Findings({}, refused_files=["a.bin was read before"]), ["apply "]),
    "no Prepare": (Findings({}, commits_without_prepare=["transaction 7"]), ["apply --set source.gaps=accept"]),
    "swapped": (Findings({}, swapped={"a.b": "…"}), ["snapshot --tables a.b --server "]),
    "ahead": (Findings({}, ahead={"a.b": 16, "a.c": 32}), ["apply "]),
    "incomplete": (Findings({}, conditions=[INCOMPLETE, PAST]), [f"snapshot --tables public.past,public.t {SERVER} "]),
    "diverged": (
        Findings({}, conditions=[DIVERGED, BAG]),
        [f"snapshot --tables public.d {SERVER} --repair ", f"snapshot --tables public.bag {SERVER} "],
    ),
    "rewritten": (
        Findings({}, conditions=REWRITTEN),
        [f"snapshot --tables public.d {SERVER} --repair ", f"snapshot --tables public.bag {SERVER} "],
    ),
    "ambiguous": (Findings({}, conditions=[AMBIGUOUS]), ["backfill --tables public.a "]),
    "new columns": (
        Findings({"public.t": Reason("its columns changed", ReasonKind.CONTRACT)}),
        ["backfill --tables public.t "],
    ),
    "a new type": (
        Findings({"public.t": Reason("its columns changed", ReasonKind.NEW_TYPE)}),
        [f"snapshot --tables public.t {SERVER} "],
    ),
    "no longer skipped": (Findings({"public.t": WAS_SKIPPED}), ["backfill --tables public.t "]),
    "nothing": (Findings({}), []),
}


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_command_that_its_job_takes(state: str, config: Config) -> None:
    findings, expected = STATES[state]
    commands = next_commands(config, findings)
    options = f" {shlex.join(config.options)}"
    assert len(commands) == len(expected)
    for step, begin in zip(commands, expected, strict=True):
        assert f"{step.command.replace(options, '')} ".startswith(f"pgoutput-etl {begin}")
    for step in commands:
        _, job, *arguments = shlex.split(step.command)
        source, *_ = command(job).parser().parse(job, arguments)
        assert source.config == config.options[1]
        assert step.reason.endswith(":")


def test_a_command_stands_once_with_all_reasons(config: Config) -> None:
    findings = Findings({"a.b": "its name is empty"}, refused_files=[f"a.bin{LEFT_UNREAD}"])
    [step] = next_commands(config, findings)
    assert step.reason.startswith("1 table is held: repair")
    assert "left unread" in step.reason
    assert next_lines([step]) == ["Next:", f"  {step.reason}", f"    {step.command}"]
    assert next_lines([]) == []


def test_a_snapshot_that_drops_history_says_so(config: Config) -> None:
    [plain] = next_commands(config, Findings({}, conditions=[INCOMPLETE]))
    assert plain.reason.startswith("1 table is incomplete: set `source.snapshot: accept` if it has no earlier rows")
    assert plain.reason.endswith("which replaces the table:")
    [dropping] = next_commands(config, Findings({}, conditions=[PAST]))
    assert dropping.reason.endswith("which replaces the table; it drops what mode history kept:")


def test_the_configured_server_stands_in_the_command(tmp_path: Path) -> None:
    path, url = tmp_path / "shop.yaml", "jdbc:postgresql://db:5432/shop"
    path.write_text(f"source: {{name: shop, landing: ./landing, jdbc: '{url}'}}\ntarget: {{root: ./warehouse}}\n")
    [step] = next_commands(load_config(str(path)), Findings({}, conditions=[DIVERGED]))
    assert f"--server {url.removeprefix('jdbc:')} --repair" in step.command


def test_the_json_has_reasons_and_commands(config: Config) -> None:
    steps = next_commands(config, Findings({}, ahead={"a.b": 16}))
    report = json.loads(RunReport([RunSummary("shop", 1, 1, 1, 1, next=steps)]).to_json())
    reason = "1 table is ahead: land the archive through LSN 0/10, then run:"
    assert report["next"] == [{"reason": reason, "command": steps[0].command}]


@pytest.mark.parametrize("kind", [kind for kind in ReasonKind if kind not in (ReasonKind.TORN, ReasonKind.TRANSACTION)])
def test_a_text_alone_steers_nothing(kind: ReasonKind, config: Config) -> None:
    """The same text, with a kind and as 0.1.0 stored it."""
    text = "its values were never sent: no archive has them"
    [rebuild] = next_commands(config, Findings({"public.t": text}))
    [own] = next_commands(config, Findings({"public.t": Reason(text, kind)}))
    assert " --from-quarantine" in rebuild.command
    assert " --tables public.t " in f"{own.command} "


def test_landed_files_that_end_a_run_can_be_inspected(config: Config) -> None:
    for error in (ArchiveError("a.bin: unreadable"), SequenceError("a file is missing")):
        with pytest.raises(ArchiveError) as raised, inspected(config):
            raise error
        assert raised.value.next_job == ("inspect", "/landing")
    with pytest.raises(RunError) as other, inspected(config):
        raise RunError("between 1 and 3 a file is missing", next_job=("apply", "--set", "source.gaps=accept"))
    assert other.value.next_job == ("apply", "--set", "source.gaps=accept")
