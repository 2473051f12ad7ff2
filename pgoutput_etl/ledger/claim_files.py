"""Claims on storage where two drivers may commit one version of a Delta table: on S3.

There Delta looks whether a commit's object is there, and then puts it. Two drivers that do so at the same moment both
find none, and one commit is lost: also that of a claim. S3 can put an object on the condition that there is none of its
name, and Hadoop can ask for that since 3.4.2, but Delta doesn't. So a claim is such an object first, and a row of the
ledger then; who has it is the only one that writes to the ledger and its tables (ADR 20).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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

_AGAIN = "ConditionalRequestConflict"  # S3's word for: somebody else is at it this very moment

_MAY_BOTH_WORK = "two runs that start within the same second may both work, and spoil each other's (docs/storage.md)"


def claim_files(
    spark: SparkSession, root: str, source: str, say: Callable[[str], None] = lambda _: None
) -> ClaimFiles | None:
    """Of a ledger at `root`; None where Delta's own commits are taken once. `say`: is told what storage can't do."""
    scheme = urlsplit(root).scheme
    if scheme not in _SCHEMES or is_connect(spark) or is_platform_session():
        return None
    chosen = spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None) or spark.conf.get(
        "spark.delta.logStore.class", None
    )
    if chosen is not None and not chosen.endswith(_ONE_DRIVER):
        return None
    return ClaimFiles(spark, f"{root}/_claims", path_segment(source), say)


@dataclass(slots=True)
class ClaimFiles:
    """Objects <folder>/<source>/<batch>.<attempt>.json, each the newest row of its claim."""

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
        """The claims of a batch and its neighbours, as rows of the ledger's `claims`."""
        names = [name for name in self._names(self.source) if abs(_batch_of(name) - batch) <= 1]
        return [self._read(f"{self.source}/{name}") for name in names]

    def make(self, row: Mapping[str, Any]) -> bool:
        """False if this attempt at this batch was claimed before.

        Raises RunError, and claims nothing, if a run of another source is at work on the same ledger.
        """
        name = self._name(row)
        if not self._make(name, row):
            return bool(self._read(name)["run"] == row["run"])  # an answer that got lost: it is this run's
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
        """Of a claim that this run made: what is to be said of it now."""
        _write(row, self._files.create(self._path(self._name(row)), True))

    def _name(self, row: Mapping[str, Any]) -> str:
        return f"{self.source}/{row['batch']}.{row['attempt']}.json"

    def _make(self, name: str, row: Mapping[str, Any]) -> bool:
        path = self._path(name)
        if self._files.exists(path):
            return False
        if not self._files.hasPathCapability(path, _CAPABILITY):
            self.report(
                "what Spark reaches S3 with can't put an object only where there is none, as s3a of Hadoop 3.4.2 can: "
                + _MAY_BOTH_WORK
            )
            _write(row, self._files.create(path, False))
            return True
        if not self._make_once(name, row):
            return False
        if self._make_once(name, row):
            self.report(f"this storage puts an object also where there is one that must stay: {_MAY_BOTH_WORK}")
        return True

    def _make_once(self, name: str, row: Mapping[str, Any]) -> bool:
        for is_last in (False, False, True):
            builder = self._files.createFile(self._path(name)).create().overwrite(False).recursive()
            try:
                _write(row, builder.must(_CONDITION, "true").build())
                return True
            except Py4JJavaError as error:
                said = str(error)
                if any(sign in said for sign in _TAKEN):
                    return False
                if is_last or _AGAIN not in said:
                    raise
        return False

    def _refuse_other_sources(self) -> None:
        now, here = datetime.now(timezone.utc), Process.current()
        for other in self._names(""):
            names = [] if other == self.source else self._names(other)
            claim = newest([self._read(f"{other}/{name}") for name in names])
            if claim is not None and claim.process != here and claim.is_alive(now, here):
                raise RunError(
                    f"a run of another source, {other}, is at work on the same ledger: process {claim.process.pid} of "
                    f"{claim.process.machine.split()[0]}. On S3 only one driver at a time may write to a ledger: run "
                    "one source after the other, or give each a state.root of its own. This run changes nothing"
                )

    def _names(self, folder: str) -> list[str]:
        """None if there is no such folder."""
        try:
            found = self._files.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if "FileNotFoundException" not in str(error):
                raise
            return []
        return [str(status.getPath().getName()) for status in found]

    def _read(self, name: str) -> dict[str, Any]:
        stream = self._files.open(self._path(name))
        try:
            row: dict[str, Any] = json.loads(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        return {**row, "at": datetime.fromisoformat(row["at"])}

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self.folder}/{name}".rstrip("/"))


def _write(row: Mapping[str, Any], stream: Any) -> None:
    stream.write(bytearray(json.dumps({**row, "at": row["at"].isoformat()}).encode()))
    stream.close()


def _batch_of(name: str) -> int:
    return int(name.partition(".")[0])
