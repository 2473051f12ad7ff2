"""Explains the settings of one table: each value, and the line of the file that sets it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import TypeAdapter
from rich.console import Console

from pgoutput_etl.config.column_settings import SALT
from pgoutput_etl.config.rule_merge import PlacedRule
from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Config, document_of
from pgoutput_etl.config.yaml_file import Document, has_secret, written_path
from pgoutput_etl.console import Row, grid, print_parts, summary_json
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_DONE
from pgoutput_etl.targets.location import named_target

_DEFAULT = "default"

_HIDDEN = "(from the environment)"

_RULE = TypeAdapter(TableRule)


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """setting: the key, such as columns.email. origin: the file, the line, and the rule; `default` for a key that no
    rule sets."""

    setting: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class TableSettings:
    """target: the target's schema.table; None if the table is skipped. rules: the keys, in the file, of the rules that
    apply, from general to specific."""

    table: str
    target: str | None
    rules: tuple[str, ...]
    settings: tuple[ExplainedSetting, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_DONE

    @property
    def outcome(self) -> str:
        return "skipped" if self.target is None else f"stored as {self.target}"

    def to_json(self) -> str:
        return summary_json(self)


def explain(config: Config, table: str) -> TableSettings:
    """table: schema.table; the archive needn't have it. Raises ConfigError."""
    schema, dot, name = table.partition(".")
    if not (schema and dot and name):
        raise ConfigError("--explain: expected schema.table")
    explanation = _Explanation(config, document_of(config), table, config.rule_book.matching(table))
    rule = config.rule_for(schema, name)
    target = None if rule.skip else ".".join(named_target(config, (schema, name)))
    settings = tuple(explanation.settings(rule))
    return TableSettings(table, target, tuple(placed.place for placed in explanation.rules), settings)


@dataclass(frozen=True, slots=True)
class _Explanation:
    """rules: those of the table, from general to specific."""

    config: Config
    document: Document
    table: str
    rules: list[PlacedRule]

    def settings(self, rule: TableRule) -> Iterator[ExplainedSetting]:
        """The value of each setting, and where it comes from. rule: all of the table's rules combined."""
        values: dict[str, Any] = _RULE.dump_python(rule, mode="json", include=TableRule.key_fields().keys() - {"match"})
        for name, value in values.items():
            if isinstance(value, Mapping) and value:
                for key, item in value.items():
                    yield self._setting((name, key), item)
            else:
                yield self._setting((name,), value)

    def _setting(self, keys: tuple[str, ...], value: Any) -> ExplainedSetting:
        name = ".".join(keys)
        if keys == ("skip",) and not self.config.rule_book.includes(self.table):
            return ExplainedSetting(name, value, f"{self.document.place('include')} (include)")
        for placed in () if value in (None, {}) else reversed(self.rules):  # a rule never sets these
            path = (*placed.path, *keys)
            given = self.document.value(path)
            if given is not None:
                shown = _HIDDEN if has_secret(_without_salt(given)) else value
                return ExplainedSetting(name, shown, f"{self.document.place(written_path(path))} ({placed.place})")
        return ExplainedSetting(name, value, _DEFAULT)


def _without_salt(given: object) -> object:
    """A column's setting in the form that the configuration keeps."""
    if isinstance(given, list):
        return [_without_salt(item) for item in given]
    return {key: value for key, value in given.items() if key != SALT} if isinstance(given, Mapping) else given


def print_settings(found: TableSettings, console: Console | None = None) -> None:
    rows: list[Row] = [(s.setting, [], [_text(s.value), s.origin]) for s in found.settings]
    rules = f"Its rules, from general to specific: {', '.join(found.rules) or 'none'}."
    print_parts([f"{found.table} is {found.outcome}.", rules, grid("setting", [], ["value", "from"], rows)], console)


def _text(value: Any) -> str:
    written = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return written.removesuffix("\n").removesuffix("\n...")
