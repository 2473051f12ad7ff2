"""Checks a configuration and reports its contents or all of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.config.settings import Config, config_mistakes, load_configs
from pgoutput_etl.config.sources import source_documents
from pgoutput_etl.config.yaml_file import Document, Mistake, parsed_document
from pgoutput_etl.console import Row, counted, grid, print_error, print_parts, summary_json
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_USAGE


@dataclass(frozen=True, slots=True)
class ConfigurationError:
    """key: its path in the file, such as tables[0].match. line: None for an option or for the whole file. message: with
    file and key."""

    key: str
    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class ConfiguredSource:
    """target: a folder, or a catalog. state: the ledger's folder."""

    source: str
    landing: str
    target: str
    state: str


@dataclass(frozen=True, slots=True)
class Validation:
    """sources: empty if the file has errors. tables: the number of rules."""

    file: str
    sources: tuple[ConfiguredSource, ...] = ()
    tables: int = 0
    errors: tuple[ConfigurationError, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_USAGE if self.errors else EXIT_DONE

    def to_json(self) -> str:
        return summary_json(self)


def validate(path: str, overrides: Sequence[str] = ()) -> Validation:
    try:
        documents = source_documents(parsed_document(path, overrides))
    except ConfigError as error:
        return Validation(path, errors=(ConfigurationError("", None, str(error)),))
    errors = [_error(document, mistake) for document in documents for mistake in config_mistakes(document)]
    if errors:
        return Validation(path, errors=tuple(dict.fromkeys(errors)))
    configs = load_configs(path, overrides)
    return Validation(path, tuple(map(_described, configs)), len(configs[0].tables))


def _error(document: Document, mistake: Mistake) -> ConfigurationError:
    """The error for a mistake; in a section that sources share, it is the same for all of them."""
    key = document.in_file(mistake.path)
    return ConfigurationError(key, document.line(mistake.path), str(document.error(mistake)))


def _described(config: Config) -> ConfiguredSource:
    target = config.target.root or config.target.catalog or ""
    return ConfiguredSource(config.source.name, config.source.landing, target, config.state.root)


def print_validation(found: Validation, console: Console | None = None) -> None:
    """Prints the result. Errors go to standard error, as in other jobs."""
    for error in found.errors:
        mistake = ConfigError(error.message)
        mistake.code = ErrorCode.CONFIG_FILE
        print_error(mistake)
    if found.errors:
        return
    rows: list[Row] = [(s.source, [], [s.landing, s.target, s.state]) for s in found.sources]
    heading = f"{found.file} is valid. It has {counted(found.tables, 'rule')} for tables."
    print_parts([heading, grid("source", [], ["landing", "target", "ledger"], rows)], console)
