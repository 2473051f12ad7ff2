"""Claims on S3, where two drivers may commit the same version of a Delta table.

On S3, Delta checks whether a commit's object exists and then puts it. If two drivers do so at the same moment, one
commit is lost, and it may be a claim. S3 can put an object on condition that its name is free, and Hadoop supports that
since 3.4.2, but Delta doesn't use it. So a claim is first such an object and then a row of the ledger; only its owner
writes to the ledger and its tables (ADR 20).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.claims import Process, newest
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.platform import is_platform_session

_SCHEMES = ("s3", "s3a", "s3n")

_ONE_DRIVER = "S3SingleDriverLogStore"  # Delta's own for these schemes, unless another one is configured

_CAPABILITY = "fs.s3a.create.conditional.enabled"

_CONDITION = "fs.option.create.conditional.overwrite"

_TAKEN = ("RemoteFileChangedException", "FileAlreadyExistsException")

_CONFLICT = "ConditionalRequestConflict"  # S3: another request for the same object is in progress; try again

_RISK = "two runs that start within the same second may both work and corrupt each other's tables (docs/storage.md)"


def claim_files(
    spark: SparkSession, root: str, source: str, report: Callable[[str], None] = lambda _: None
) -> ClaimFiles | None:
    """The claim files of a ledger at `root`; None where Delta's own commits are safe. report: called with a warning if
    the storage has no conditional put."""
    scheme = urlsplit(root).scheme
    if scheme not in _SCHEMES or is_connect(spark) or is_platform_session():
        return None
    keys = (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class")
    chosen = [store for key in keys if (store := spark.conf.get(key, None))]
    if chosen and not chosen[0].endswith(_ONE_DRIVER):
        return None
    return ClaimFiles(spark, f"{root}/_claims", path_segment(source), report)


@dataclass(slots=True)
class ClaimFiles:
    """Objects <folder>/<source>/<batch>.<attempt>.json, each with the newest row of its claim."""

    spark: SparkSession
    folder: str
    source: str
    report: Callable[[str], None]
    _java: Any = field(init=False)
    _files: Any = field(init=False)

    def __post_init__(self) -> None:
        self._java = cast(Any, self.spark)._jvm
        settings = cast(Any, self.spark)._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path("").getFileSystem(settings)

    def read(self, batch: int) -> list[dict[str, Any]]:
        """The claims of a batch and its neighbors, as rows of the ledger's `claims`."""
        names = [name for name in self._names(self.source) if abs(_batch_of(name) - batch) <= 1]
        return [self._read(f"{self.source}/{name}") for name in names]

    def make(self, row: Mapping[str, Any]) -> bool:
        """Returns False if another run has already claimed this attempt at the batch.

        Raises RunError, and claims nothing, if a run of another source is working on the same ledger.
        """
        name = self._name(row)
        if not self._make(name, row):
            return bool(self._read(name)["run"] == row["run"])  # True: ours, put by a request whose response was lost
        try:
            self._refuse_other_sources()
        except RunError:
            self._files.delete(self._path(name), False)
            raise
        for older in self._names(self.source):
            if _batch_of(older) < row["batch"] - 1:
                self._files.delete(self._path(f"{self.source}/{older}"), False)
        return True

    def renew(self, row: Mapping[str, Any]) -> None:
        """Overwrites a claim of this run."""
        _write(row, self._files.create(self._path(self._name(row)), True))

    def _name(self, row: Mapping[str, Any]) -> str:
        return f"{self.source}/{row['batch']}.{row['attempt']}.json"

    def _make(self, name: str, row: Mapping[str, Any]) -> bool:
        path = self._path(name)
        if self._files.exists(path):
            return False
        if not self._files.hasPathCapability(path, _CAPABILITY):
            self.report(f"Spark's S3 client has no conditional put, which s3a has since Hadoop 3.4.2: {_RISK}")
            _write(row, self._files.create(path, False))
            return True
        if not self._make_once(name, row):
            return False
        if self._make_once(name, row):
            self.report(f"this storage ignores the condition of a conditional put: {_RISK}")
        return True

    def _make_once(self, name: str, row: Mapping[str, Any]) -> bool:
        for is_last in (False, False, True):
            builder = self._files.createFile(self._path(name)).create().overwrite(False).recursive()
            try:
                _write(row, builder.must(_CONDITION, "true").build())
                return True
            except Py4JJavaError as error:
                text = str(error)
                if any(sign in text for sign in _TAKEN):
                    return False
                if is_last or _CONFLICT not in text:
                    raise
        return False

    def _refuse_other_sources(self) -> None:
        now, here = datetime.now(timezone.utc), Process.current()
        for other in self._names(""):
            names = [] if other == self.source else self._names(other)
            claim = newest([self._read(f"{other}/{name}") for name in names])
            if claim is not None and claim.process != here and claim.is_alive(now, here):
                raise RunError(
                    f"a run of another source, {other}, is at work on the same ledger: {claim.process}. On S3 only one "
                    "driver at a time may write to a ledger: run one source after the other, or give each its own "
                    "state.root. This run changes nothing"
                )

    def _names(self, folder: str) -> list[str]:
        try:
            statuses = self._files.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if "FileNotFoundException" not in str(error):
                raise
            return []
        return [str(status.getPath().getName()) for status in statuses]

    def _read(self, name: str) -> dict[str, Any]:
        with closing(self._files.open(self._path(name))) as stream:
            row: dict[str, Any] = json.loads(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        return {**row, "at": datetime.fromisoformat(row["at"])}

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self.folder}/{name}".rstrip("/"))


def _write(row: Mapping[str, Any], stream: Any) -> None:
    stream.write(bytearray(json.dumps({**row, "at": row["at"].isoformat()}).encode()))
    stream.close()


def _batch_of(name: str) -> int:
    return int(name.partition(".")[0])
