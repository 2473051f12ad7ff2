"""A small file for other programs, on any storage, replaced atomically where the storage supports it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from pgoutput_etl.file_access import PRIVATE, Access
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import is_platform_session, local_path

_VOLUMES = "/Volumes/"  # on Databricks, where any process accesses them as files


class SharedFile(Protocol):
    def read(self) -> str | None:
        """The file's text, or None if it doesn't exist."""

    def replace(self, text: str) -> None: ...

    def delete(self) -> None:
        """Deletes the file, if it exists."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: Path
    access: Access

    def read(self) -> str | None:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def replace(self, text: str) -> None:
        if not self.path.parent.exists():
            self.access.make_folder(self.path.parent)
        replace_file(self.path, text, self.access)

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class VolumeFile(LocalFile):
    """A file in a Databricks volume. A volume is not a full file system and may not be able to rename files."""

    def replace(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ObjectFile:
    objects: ObjectFolder
    name: str

    def read(self) -> str | None:
        return self.objects.read(self.name)

    def replace(self, text: str) -> None:
        self.objects.replace(self.name, text)

    def delete(self) -> None:
        self.objects.delete(self.name)


def shared_file(spark: SparkSession, folder: str, name: str, access: Access = PRIVATE) -> SharedFile | None:
    """The file, or None for a Spark Connect client, which can't write to the server's storage. access: for a local
    file, and for its folder if that is new."""
    volume = folder.removeprefix("dbfs:")
    if is_platform_session() and volume.startswith(_VOLUMES):
        return VolumeFile(Path(volume, name), access)
    if is_connect(spark):
        return None
    local = local_path(spark, folder)
    return ObjectFile(ObjectFolder(spark, folder), name) if local is None else LocalFile(Path(local, name), access)
