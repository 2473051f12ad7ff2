"""The text of a configuration: YAML, with findings from the archive as comments. PyYAML quotes the names in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from glob import escape

import yaml

from pgoutput_etl.answers.init.findings import ArchiveFindings, TableFindings
from pgoutput_etl.config.json_schema import FILE

_FOLDERS = "# Folders are relative to the job's working directory."

_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")

_VARIABLE = re.compile(r"\$\{[^}]{0,500}\}?")  # a variable to config/yaml_file.py, unless it follows another $


def quoted(text: str) -> str:
    """A single-line YAML scalar that the configuration reads as this text."""
    text = _VARIABLE.sub(r"$\g<0>", text)
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf")).strip()


def source_name(landing: str) -> str:
    """A valid name for the source, made from that of its folder."""
    folders = [part for part in re.split(r"[/\\]", landing) if not re.search(r"[*?\[{]", part)]
    names = (re.sub(r"[^A-Za-z0-9_.-]+", "_", folder).strip("._") for folder in reversed(folders))
    return next(filter(None, names), "source")


def configuration(landing: str, name: str, findings: ArchiveFindings) -> str:
    """The YAML file's text. name: the source's name."""
    source = _source(landing, name, _files(findings))
    return "\n".join([*_heading(landing, findings), *source, *_tables(findings.tables), ""])


def server_configuration(landing: str, name: str, tables: Sequence[TableFindings], catalog_key: str | None) -> str:
    """The YAML file's text before any file has landed. catalog_key: the name of an environment variable."""
    lines = ["  framing: auto  # detected per file"]
    lines.append("  gaps: refuse  # a missing file stops the run, where files are numbered")
    if catalog_key is not None:
        lines.append(f"  catalog_key: ${{{catalog_key}}}  # nobody but the server can sign changes of definitions")
    heading = [*_written_by("start from the server's catalog"), _FOLDERS, ""]
    return "\n".join([*heading, *_source(landing, name, lines), *_tables(tables), ""])


def _written_by(job: str) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={FILE.as_uri()}"
    yield f"# Written by pgoutput-etl {job}. docs/configuration.md has every key."


def _heading(landing: str, findings: ArchiveFindings) -> Iterator[str]:
    read = (
        f"{findings.inspected:,} of {findings.files:,} files" if _is_sample(findings) else f"{findings.files:,} files"
    )
    yield from _written_by(f"init from {read} in {quoted(landing)}")
    if _is_sample(findings):
        yield "# These are the first and the newest files; others may have more tables. pgoutput-etl inspect reads all."
    yield _FOLDERS
    yield from (f"# Can't be read: {quoted(line)}" for line in findings.unreadable)
    yield ""


def _source(landing: str, name: str, files: Iterable[str]) -> Iterator[str]:
    yield "source:"
    yield f"  name: {quoted(name)}  # one replication slot's archive; the ledger is kept per source"
    yield f"  landing: {quoted(landing)}"
    yield from files
    yield "  snapshot: manual  # exit code 3 until the rows from before the archive are loaded; accept: there are none"
    yield ""
    yield "target:"
    yield "  root: ./warehouse  # a Delta table per PostgreSQL table, at <root>/<schema>/<table>"
    yield "  readers: auto  # Polars and delta-rs open a table, too, until it needs features that they don't have"
    yield ""


def _files(findings: ArchiveFindings) -> Iterator[str]:
    if len(findings.framings) == 1:
        yield f"  framing: {findings.framings[0]}  # of all files that were read; auto detects it per file"
    else:
        yield f"  framing: auto  # found: {', '.join(findings.framings) or 'none'}"
    if findings.is_numbered:
        yield "  gaps: refuse  # the files are numbered: a missing number stops the run; accept: it does not"
    elif findings.missing:
        yield from (f"  # {quoted(line)}" for line in findings.missing)
        yield "  gaps: refuse  # stops the run there; accept: if these files never existed"
    else:
        yield "  gaps: refuse  # the files are not numbered: a missing file of whole transactions can't be noticed"


def _tables(tables: Sequence[TableFindings]) -> Iterator[str]:
    yield "rules: merge  # all rules that match a table count, the more specific over the more general"
    yield ""
    yield "# Tables, with their keys. Each is mirrored whole, unless a rule below says otherwise."
    yield from (line for table in tables for line in _table(table))
    if not tables:
        yield "#   none yet"
    rules = [line for table in tables if table.is_full or table.common for line in _rule(table)]
    if rules:
        yield ""
        yield "# REPLICA IDENTITY FULL does not tell the key: without a rule, all columns together identify a row. If a"
        yield "# table has a primary key, write its columns at `key`, and remove the first two characters of the lines."
        yield from ("# tables:", *rules)


def _table(table: TableFindings) -> Iterator[str]:
    if table.problem is not None:
        key = f"its first UPDATE or DELETE holds it: {quoted(table.problem)}"
    elif table.is_full:
        key = "REPLICA IDENTITY FULL"
    elif table.key:
        key = f"key {_flow(table.key)}"
    else:
        key = "no key: PostgreSQL rejects its UPDATEs and DELETEs until it has a primary key or REPLICA IDENTITY"
    yield f"#   {quoted(table.name)}: {key}"
    if table.as_text:
        columns = ", ".join(f"{quoted(name)} {quoted(type_name)}" for name, type_name in table.as_text)
        yield f"#     STRING, as Delta has no such type (docs/types.md): {columns}"


def _rule(table: TableFindings) -> Iterator[str]:
    yield f"#   - match: {quoted(escape(table.name))}"
    yield f"#     key: {_flow(table.common or table.columns[:1])}  # not known; the columns are {_flow(table.columns)}"


def _flow(names: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, names))}]"


def _is_sample(findings: ArchiveFindings) -> bool:
    return findings.inspected < findings.files
