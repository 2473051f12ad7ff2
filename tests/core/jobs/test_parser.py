"""Options at the fields of a dataclass, as they are typed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Annotated, Any, get_type_hints

import click
import pytest

from pgoutput_etl.answers.export.request import ExportRequest
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.cli import JOBS, command, main
from pgoutput_etl.jobs.parser import Parser
from pgoutput_etl.moment import Moment
from pgoutput_etl.options import LSN, NAME, NUMBER, PATH, PATTERNS, Former, Option, Value, one_of, takes_former_names
from pgoutput_etl.spark import options as spark_options
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.start.request import StartRequest
from tests.support.command_line import help_of
from tools.error_sites import ROOT


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@takes_former_names
@dataclass(frozen=True, slots=True)
class Request:
    """tables: with a former spelling that has values of its own."""

    paths: Annotated[tuple[str, ...], Option("files", PATH, "PATHS", is_list=True)]
    tables: Annotated[
        tuple[str, ...] | None,
        Option("tables", PATTERNS),
        Option("held ones", name="--held", means=None),
        Former("--table", "table", Value("NAME", lambda name: (name,))),
    ]
    from_lsn: Annotated[int | None, Option("the first", LSN), Former(keyword="first_lsn")] = None
    color: Annotated[Color, Option("a color", one_of(Color))] = Color.RED
    files: Annotated[
        str | None,
        Option("red files", PATH, "--red"),
        Option("blue files", PATH, "--blue", also=(("color", Color.BLUE),)),
    ] = None
    notes: Annotated[tuple[str, ...], Option("a note", NAME, "--note", is_list=True)] = ()
    rows: Annotated[int, Option("rows", NUMBER)] = 20
    execute: Annotated[bool, Option("do it")] = False


@dataclass(frozen=True, slots=True)
class Output:
    json: Annotated[bool, Option("as JSON")] = False


PARSER = Parser("job", "Does it.", "example: job", (Request, Output))


def parsed(*words: str) -> list[Any]:
    return list(PARSER.parse("job", words))


def test_options_fill_the_fields_that_declare_them() -> None:
    assert parsed("a", "b", "--held") == [Request(("a", "b"), None), Output()]
    request, output = parsed(
        "a", "--tables", "x.*, !x.y", "--from-lsn", "1/2", "--blue=b", "--note", "n", "--note", "o", "--rows", "3",
        "--execute", "--json",
    )  # fmt: skip
    assert request == Request(("a",), ("x.*", "!x.y"), (1 << 32) + 2, Color.BLUE, "b", ("n", "o"), 3, execute=True)
    assert output == Output(json=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'PATHS'"),
        (["a"], "expected one of --tables, --held"),
        (["a", "--tables", "b", "--held"], "expected one of --tables, --held"),
        (["a", "--tables", "b", "--table", "c"], "expected one of --tables, --held, --table"),
        (["a", "--held", "--red", "b", "--blue", "c"], "expected one of --red, --blue"),
        (["a", "--held", "--from-lsn", "x"], "Invalid value for '--from-lsn': not an LSN: 'x'"),
        (["a", "--held", "--color", "green"], "Invalid value for '--color': expected red|blue"),
        (["a", "--held", "--rows", "many"], "Invalid value for '--rows': expected a whole number"),
        (["a", "--held", "--exec"], "No such option '--exec'"),
        (["a", "--held", "--rows"], "Option '--rows' requires an argument"),
        (["a", "--held", "--master"], "--master needs a value"),
    ],
)
def test_a_mistake_is_named_below_the_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.UsageError) as mistake:
        parsed(*words)
    mistake.value.show()
    printed = capsys.readouterr().err
    assert printed.startswith("Usage: job [OPTIONS] PATHS\n")
    assert message in printed


def test_sparks_options_stand_among_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert parsed("--master", "local[1]", "a", "--conf=b=c", "--held") == [Request(("a",), None), Output()]
    assert spark_options.of_process() == {"spark.master": "local[1]", "b": "c"}


def test_former_spellings_set_the_same_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("a", "--table", "x,y")[0] == Request(("a",), ("x,y",))
    named: dict[str, Any] = {"table": "x,y", "first_lsn": 7}
    assert Request(("a",), **named) == Request(("a",), ("x,y",), 7)
    both: dict[str, Any] = {"from_lsn": 7, "first_lsn": 7}
    with pytest.raises(TypeError, match="first_lsn is the former name of from_lsn"):
        Request(("a",), None, **both)
    other: dict[str, Any] = {"last_lsn": 7}
    with pytest.raises(TypeError, match="unexpected keyword argument 'last_lsn'"):
        Request(("a",), None, **other)
    with pytest.raises(click.exceptions.Exit):
        parsed("--help")
    assert "--table " not in capsys.readouterr().out


_AT = {"--lsn 0/1": "--at 0/1", "--at-xid 1": "--at xid:1", "--before-xid 1": "--at before:1"}

# By job: the former spellings of options, and those of today.
FORMER = {
    "show": _AT,
    "export": {"--into a": "--out a", **_AT},
    "undo": {"--into a": "--out a"},
    "backfill": {"--into a": "--out a"},
    "verify": {"--table a,b": "--tables a?b", "--publication a": "--publications a", "--at-lsn 0/1": "--at 0/1"},
    "snapshot": {"--publication a": "--publications a"},
    "inspect": {"--table a.*": "--tables a.*"},
}

# What else the job needs.
OTHERS = {
    "show": ["public.t"],
    "export": ["--config", "a", "--tables", "*", "--out", "a"],
    "undo": ["--config", "a"],
    "backfill": ["--config", "a", "--tables", "*"],
    "verify": ["--config", "a"],
    "snapshot": ["--config", "a", "--tables", "*"],
    "inspect": ["landing"],
}


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_former_spelling_does_what_its_new_one_does_and_is_documented(job: str) -> None:
    parser, spellings = command(job).parser(), FORMER.get(job, {})
    hidden = [name for option in parser.params if getattr(option, "hidden", False) for name in option.opts]
    assert hidden == [former.split()[0] for former in spellings]
    page = (ROOT / "docs/upgrading.md").read_text()
    assert [name for name in hidden if f"`{name}" not in page] == []
    for former, new in spellings.items():
        others = OTHERS[job][:-2] if former.startswith("--into") and job == "export" else OTHERS[job]
        once, again = (parser.parse(job, [*others, *words.split()]) for words in (former, new))
        # An LSN is a number in former spellings
        assert [with_moment(part) for part in once] == [with_moment(part) for part in again]


def with_moment(part: Any) -> Any:
    at = getattr(part, "at", None)
    return part if at is None else replace(part, at=Moment.of(at))


def test_former_keywords_set_the_fields_of_today() -> None:
    named: dict[str, Any] = {"into": "a", "moment": Moment(xid=1)}
    assert ExportRequest(("*",), **named) == ExportRequest(("*",), "a", Moment(xid=1))
    named = {"first_lsn": 1, "last_lsn": 2, "first_time": None, "last_time": None, "into": "a"}
    assert BackfillRequest(("*",), **named) == BackfillRequest(("*",), 1, 2, out="a")
    named = {"table": "a,b", "at_lsn": 1}
    assert VerifyRequest(**named) == VerifyRequest(tables=("a?b",), at=1)
    named = {"into": "a"}
    assert UndoRequest(**named) == UndoRequest("a")
    named = {"accepts_keyless": True}
    assert StartRequest("a", "b", **named) == StartRequest("a", "b", accept_keyless=True)


def declarations(part: type[Any]) -> Iterator[tuple[str, Option]]:
    """Names and options. Every field has one, unless other options set it."""
    hints = get_type_hints(part, include_extras=True)
    metadata = {field.name: getattr(hints[field.name], "__metadata__", ()) for field in fields(part)}
    options = {name: [own for own in every if isinstance(own, Option)] for name, every in metadata.items()}
    others = {name for own in options.values() for option in own for name, _ in option.also}
    for field, own in options.items():
        assert own or field in others, f"{part.__name__}.{field} has no option"
        yield from ((option.name or f"--{field.replace('_', '-')}", option) for option in own)


@pytest.mark.parametrize("job", sorted(JOBS))
def test_help_has_every_option_with_its_text_within_80_columns(job: str) -> None:
    shown = command(job)
    text = help_of(shown)
    words = " ".join(text.split())
    declared = [own for part in shown.parts for own in declarations(part)]
    assert len(declared) >= 3
    for name, option in declared:
        assert f"{name} " in words
        assert option.help in words
    assert max(len(line) for line in text.partition("example:")[0].splitlines()) <= 80


def test_command_lines_import_neither_spark_nor_pandas() -> None:
    """A mistake is answered before they would be loaded."""
    script = (
        "import sys; from pgoutput_etl.cli import JOBS, command; [command(job).parser() for job in JOBS];"
        "print({'pyspark', 'pandas', 'delta', 'deltalake', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "completed"), [("ba", "backfill"), ("backfill --from-l", "--from-lsn"), ("backfill --o", "--out")]
)
def test_the_shell_completes_jobs_and_options(
    words: str, completed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = f"pgoutput-etl {words}"
    for name, value in {
        "_PGOUTPUT_ETL_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == f"plain,{completed}\n"
