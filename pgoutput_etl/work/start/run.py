"""One command from a server to tables: prepares the server, writes a configuration, waits until changes land, loads the
rows from before the slot, and applies.

Each step first checks whether it is done, so the same command continues a start that was interrupted.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from pgoutput_etl.answers.init.configuration import server_configuration, source_name
from pgoutput_etl.answers.init.findings import described_table
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import pattern_of
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.postgres.source_server import SourceServer, SourceTable
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.targets.plan import may_lack_rows
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.files.pipeline import apply
from pgoutput_etl.work.files.report import RunReport, RunSummary
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from pgoutput_etl.work.snapshot.steps import DEFAULT_NAME, Commands
from pgoutput_etl.work.start import catalog_key
from pgoutput_etl.work.start.report import StartStep, StartSummary
from pgoutput_etl.work.start.request import StartRequest
from pgoutput_etl.work.start.server import StartedServer, has_publication, has_slot, is_sent


def start(spark: SparkSession, request: StartRequest, progress: Progress = no_progress) -> StartSummary:
    """Brings a server's tables to Delta: prepares the server, waits for its changes, loads, and applies.

    After a PgoutputEtlError, call it again to continue, unless the error asks for something else.
    """
    request.check()
    job = Start(request, progress)
    return job.without_load() if request.only_server else job.load(spark, job.prepare())


@dataclass(frozen=True, slots=True)
class Start:
    request: StartRequest
    progress: Progress

    @property
    def server(self) -> StartedServer:
        return StartedServer(self.request, self.progress)

    def without_load(self) -> StartSummary:
        """Undoes or rehearses the start. Raises ConfigError and RunError."""
        return self.undo() if self.request.undo else self.rehearse()

    def undo(self) -> StartSummary:
        """Raises ConfigError and RunError."""
        facts = self.server.facts()
        self.server.remove()
        kept = f"The configuration {self.request.config} and what has landed or been loaded is kept."
        done = f"Dropped the slot {self.request.slot}, the publication {DEFAULT_NAME}, and the triggers of catalog.sql."
        return StartSummary(source_name(self._landing(facts.database)), remarks=(done, kept))

    def rehearse(self) -> StartSummary:
        """The steps, without executing them. Raises ConfigError and RunError."""
        facts = self.server.facts()
        self.server.check(facts)
        if Path(self.request.config).exists():
            config = self._loaded()
        else:
            with TemporaryDirectory(prefix="pgoutput-etl.") as folder:
                path = Path(folder, "start.yaml")
                path.write_text(self._configuration(facts, None), encoding="utf-8")
                config = replace(load_config(str(path)), options=("--config", self.request.config))
        return StartSummary(config.source.name, self._steps(facts, config))

    def _steps(self, facts: SourceServer, config: Config) -> list[StartStep]:
        slot, commands = self.request.slot, self._commands(facts, config)
        is_ready = has_publication(facts) and has_slot(facts, slot)
        is_received = any(found.name == slot and found.is_active for found in facts.slots)
        receive, load, following = self._receive(commands), commands.snapshot(slot), commands.apply()
        create = "create the publication, the slot, and catalog Messages"
        write = f"write the configuration {self.request.config}, and the key of catalog Messages beside it"
        return [
            StartStep(create, shlex.join(self.server.setup), is_ready),
            StartStep(write, "", Path(self.request.config).exists()),
            StartStep("start landing, as a service or in another terminal", receive, is_received),
            StartStep(load.text, load.command, is_done=False),
            StartStep(following.text, following.command, is_done=False),
        ]

    def prepare(self) -> Config:
        """All steps before the load; needs no Spark. Raises ConfigError, RunError, and TryLaterError."""
        facts = self.server.facts()
        self.server.check(facts)
        key = self.server.prepare()
        if not Path(self.request.config).exists():
            self._write(facts, key)
        config = self._loaded()
        landing = config.source.landing
        if "://" not in landing:
            Path(landing).mkdir(parents=True, exist_ok=True)
        self.server.wait(self._receive(self._commands(facts, config)))
        return config

    def load(self, spark: SparkSession, config: Config) -> StartSummary:
        """Loads tables that lack rows and applies landed files. Raises PgoutputEtlError."""
        ledger = DeltaLedger.of(spark, config)
        earlier: list[RunSummary] = []
        if ledger.batches.last() is not None:  # a table that has appeared since may be complete
            earlier = [batch for batch in apply(spark, config, self.progress) if batch.files]
        last = ledger.batches.last()
        states = {} if last is None else last.tables
        complete = {state.full_name for state in states.values() if not may_lack_rows(state)}
        missing = [t.name for t in self._wanted(self.server.facts(), config) if t.name not in complete]
        loaded = None
        if missing:
            self.progress(f"loading {counted(len(missing), 'table')}")
            patterns = tuple(map(pattern_of, missing))
            request = SnapshotRequest(patterns, server=self.request.server, slot=self.request.slot)
            loaded = snapshot(spark, config, request, self.progress)
        runs = RunReport([*earlier, *apply(spark, config, self.progress)])
        return StartSummary(config.source.name, snapshot=loaded, runs=runs, remarks=self.server.remarks())

    def _wanted(self, facts: SourceServer, config: Config) -> list[SourceTable]:
        tables = [table for table in facts.tables if table.published_by((DEFAULT_NAME,))]
        wanted = SnapshotRequest(self.request.tables).wants
        return [t for t in tables if wanted(t.name) and not config.rule_for(t.schema, t.table).skip]

    def _commands(self, facts: SourceServer, config: Config) -> Commands:
        tables = tuple(self.request.tables)
        return Commands(config, SnapshotRequest(tables, server=self.request.server), facts.version)

    def _receive(self, commands: Commands) -> str:
        return commands.receive(self.request.slot, (DEFAULT_NAME,)).command

    def _loaded(self) -> Config:
        catalog_key.load(self.request.config)
        config = load_config(self.request.config)
        if self.request.landing is not None and Path(self.request.landing).resolve() != Path(config.source.landing):
            raise ConfigError(f"--landing: {self.request.config} exists, and has another source.landing")
        return config

    def _write(self, facts: SourceServer, key: str | None) -> None:
        path = Path(self.request.config)
        if key is not None:
            kept = catalog_key.keep(self.request.config, key)
            export = f"set -a; . {shlex.quote(str(kept))}; set +a"
            self.progress(f"the key of catalog Messages is in {kept}: before other jobs, run {export}")
        try:
            replace_file(path, self._configuration(facts, None if key is None else catalog_key.VARIABLE))
        except OSError as error:
            raise ConfigError(f"{path}: can't be written: {error.strerror}") from None
        self.progress(f"wrote {path}")

    def _configuration(self, facts: SourceServer, key: str | None) -> str:
        landing, types = self._landing(facts.database), UserTypes.of((), {})
        tables = [
            described_table(table.described[0], table.described[1:], types)
            for table in facts.tables
            if table.described and ((is_sent(table) and not table.is_partition) or table.is_root)
        ]
        return server_configuration(landing, source_name(landing), tables, key)

    def _landing(self, database: str) -> str:
        return self.request.landing or f"./landing/{source_name(database)}"
