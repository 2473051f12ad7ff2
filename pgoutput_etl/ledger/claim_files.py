"""Claims on S3, where two drivers may commit the same version of a Delta table.

On S3, Delta checks whether a commit's object exists, and then puts it. If two drivers do so at the same moment, one
commit is lost, and it may be a claim. S3 can put an object only if its name is free, and so can Hadoop since 3.4.2, but
Delta doesn't use this. A claim is therefore first put as such an object, and then becomes a row of the ledger; only its
owner writes to the ledger and its tables (ADR 20).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from pgoutput_etl.errors import AnotherRunError, ConfigError, RunError
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.claims import Claim, newest, sign_of_life
from pgoutput_etl.machine import THIS_MACHINE, Machine, now
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import is_platform_session

_SCHEMES = ("s3", "s3a", "s3n")

_ONE_DRIVER = "S3SingleDriverLogStore"  # Delta's default for these schemes

_RISK = "two runs that start within the same second may both work and corrupt each other's tables (docs/storage.md)"


class Objects(Protocol):
    """Objects in a folder, by their names in it."""

    def names(self, folder: str) -> list[str]: ...

    def read(self, name: str) -> str | None:
        """The object's text, or None if it doesn't exist."""

    def exists(self, name: str) -> bool: ...

    def put(self, name: str, text: str, may_exist: bool) -> None:
        """may_exist: False if the caller has just seen that it doesn't; the storage may not check this again."""

    def can_put_once(self, name: str) -> bool: ...

    def put_once(self, name: str, text: str) -> bool:
        """Puts the object if its name is free; otherwise returns False."""

    def puts_unseen(self) -> bool:
        """True if the storage's client puts a new object without checking whether its name is free."""

    def delete(self, name: str) -> None: ...


def claim_files(
    spark: SparkSession,
    root: str,
    source: str,
    report: Callable[[str], None] = lambda _: None,
    machine: Machine = THIS_MACHINE,
) -> ClaimFiles | None:
    """The claim files of a ledger at `root`; None where Delta's own commits are safe. report: receives a warning if the
    storage has no conditional put."""
    scheme = urlsplit(root).scheme
    if scheme not in _SCHEMES or is_connect(spark) or is_platform_session():
        return None
    keys = (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class")
    chosen = [store for key in keys if (store := spark.conf.get(key, None))]
    if chosen and not chosen[0].endswith(_ONE_DRIVER):
        return None
    return ClaimFiles(ObjectFolder(spark, f"{root}/_claims"), path_segment(source), report, machine)


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """Objects <source>/<batch>.<attempt>.json, each with the newest row of its claim. dead: other sources' claims that
    need not be observed again."""

    objects: Objects
    source: str
    report: Callable[[str], None]
    machine: Machine = THIS_MACHINE
    dead: set[Claim] = field(default_factory=set)

    def read(self, batch: int) -> list[dict[str, Any]]:
        """The claims on a batch and its neighbors, as rows of the ledger's `claims`."""
        names = [name for name in self.objects.names(self.source) if abs(_batch_of(name) - batch) <= 1]
        return self._rows(self.source, names)

    def make(self, row: Mapping[str, Any]) -> bool:
        """Returns False if another run has already claimed this attempt at the batch.

        Raises RunError, without claiming anything, if a run of another source is active on the same ledger, and
        ConfigError if commits could overwrite each other.
        """
        self._refuse_unseen_puts()
        name = self._name(row)
        if not self._make(name, row):
            made = self._read(name)
            return made is not None and made["run"] == row["run"]  # ours; the response to an earlier request was lost
        try:
            self._refuse_other_sources(row)
        except RunError:
            self.objects.delete(name)
            raise
        for older in self.objects.names(self.source):
            if _batch_of(older) < row["batch"] - 1:
                self.objects.delete(f"{self.source}/{older}")
        return True

    def renew(self, row: Mapping[str, Any]) -> None:
        """Overwrites this run's claim."""
        self.objects.put(self._name(row), _text(row), may_exist=True)

    def _name(self, row: Mapping[str, Any]) -> str:
        return f"{self.source}/{row['batch']}.{row['attempt']}.json"

    def _make(self, name: str, row: Mapping[str, Any]) -> bool:
        if self.objects.exists(name):
            return False
        if not self.objects.can_put_once(name):
            self.report(f"Spark's S3 client has no conditional put, which s3a has since Hadoop 3.4.2: {_RISK}")
            self.objects.put(name, _text(row), may_exist=False)
            return True
        if not self.objects.put_once(name, _text(row)):
            return False
        if self.objects.put_once(name, _text(row)):
            self.report(f"this storage ignores the condition of a conditional put: {_RISK}")
        return True

    def _refuse_unseen_puts(self) -> None:
        if self.objects.puts_unseen():
            raise ConfigError(
                "spark.hadoop.fs.s3a.performance.flags: with 'create', S3A looks for nothing before it puts an object, "
                "so commits could overwrite each other. Remove it"
            )

    def _refuse_other_sources(self, row: Mapping[str, Any]) -> None:
        """Renews this run's claim while it waits for others' renewals, because they may wait for this one's."""

        def renewed_by(other: str) -> Claim | None:
            self.renew({**row, "at": now(self.machine)})
            return self._newest(other)

        for other in self.objects.names(""):
            claim = None if other == self.source else self._newest(other)
            if claim is None or claim.process == self.machine.process() or claim in self.dead:
                continue
            if sign_of_life(claim, partial(renewed_by, other), self.machine, self.report) is None:
                self.dead.add(claim)
            else:
                raise AnotherRunError(
                    f"a run of another source, {other}, is using the same ledger: {claim.process}. On S3 only one "
                    "driver at a time may write to a ledger: run one source after the other, or, unless they share "
                    "tables, give each its own state.root. This run changes nothing"
                )

    def _newest(self, source: str) -> Claim | None:
        return newest(self._rows(source, self.objects.names(source)))

    def _rows(self, source: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """The rows in these objects, except for objects that another run has deleted since they were listed."""
        rows = (self._read(f"{source}/{name}") for name in names)
        return [row for row in rows if row is not None]

    def _read(self, name: str) -> dict[str, Any] | None:
        text = self.objects.read(name)
        if text is None:
            return None
        row: dict[str, Any] = json.loads(text)
        return {**row, "at": datetime.fromisoformat(row["at"])}


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps({**row, "at": row["at"].isoformat()})


def _batch_of(name: str) -> int:
    return int(name.partition(".")[0])
