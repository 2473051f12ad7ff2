"""Small objects in a folder on any storage that Hadoop supports. They can be put conditionally, if their name is
free."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from pgoutput_etl.spark.java import hadoop_path, java_class

_CAPABILITY = "fs.s3a.create.conditional.enabled"

_CONDITION = "fs.option.create.conditional.overwrite"

# How a file is opened.
_LENGTH, _WHOLE = "fs.option.openfile.length", ("fs.option.openfile.read.policy", "whole-file")

# S3A settings that make it skip the check for an existing object before a put.
_FLAGS, _CREATE_UNSEEN = "fs.s3a.performance.flags", "fs.s3a.create.performance"

# Object stores, where a file appears when it is closed. Elsewhere, readers see it while it is written.
_PUT_AT_ONCE = frozenset({"s3", "s3a", "s3n", "gs"})

_TAKEN = ("RemoteFileChangedException", "FileAlreadyExistsException")

_IO = "org.apache.commons.io.IOUtils"
_VERSIONING = "software.amazon.awssdk.services.s3.model.GetBucketVersioningRequest"

_CONFLICT = "ConditionalRequestConflict"  # S3: another request for the same object is in progress; try again


@dataclass(slots=True)
class ObjectFolder:
    """A folder. Names are relative to it."""

    spark: SparkSession
    folder: str
    _files: Any = field(init=False)

    def __post_init__(self) -> None:
        settings = cast(Any, self.spark)._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path("").getFileSystem(settings)

    def names(self, folder: str) -> list[str]:
        try:
            statuses = self._files.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if "FileNotFoundException" not in str(error):
                raise
            return []
        return [str(status.getPath().getName()) for status in statuses]

    def all_files(self) -> list[tuple[str, int]]:
        """The paths and sizes of all files below the folder."""
        files = self._files.listFiles(self._path(""), True)
        found = []
        while files.hasNext():
            status = files.next()
            found.append((str(status.getPath().toString()), int(status.getLen())))
        return found

    def read(self, name: str) -> str | None:
        """The object's text, or None if it doesn't exist."""
        try:
            with closing(self._files.open(self._path(name))) as stream:
                return str(java_class(self.spark, _IO).toString(stream, "UTF-8"))
        except Py4JJavaError as error:
            if "FileNotFoundException" not in str(error):
                raise
            return None

    def read_bytes(self, name: str, size: int) -> bytes:
        """An object of a known size, for which S3 is not asked."""
        opening = self._files.openFile(self._path(name)).opt(_LENGTH, str(size)).opt(*_WHOLE)
        with closing(opening.build().get()) as stream:
            return bytes(java_class(self.spark, _IO).toByteArray(stream))

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def put(self, name: str, content: str | bytes, may_exist: bool) -> None:
        """may_exist: if False, raises Java's error if the object exists."""
        _write(content, self._files.create(self._path(name), may_exist))

    def replace(self, name: str, content: str | bytes) -> None:
        """Replaces the object atomically: readers see the old one or the new one."""
        if str(self._files.getUri().getScheme()) in _PUT_AT_ONCE:
            self.put(name, content, may_exist=True)
            return
        unfinished = f".{name}.tmp"
        self.put(unfinished, content, may_exist=True)
        contexts = java_class(self.spark, "org.apache.hadoop.fs.FileContext")
        files = contexts.getFileContext(self._files.getUri(), self._files.getConf())
        rename = java_class(self.spark, "org.apache.hadoop.fs.Options$Rename")
        options = cast(Any, self.spark)._sc._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        files.rename(self._path(unfinished), self._path(name), options)

    def can_put_once(self, name: str) -> bool:
        return bool(self._files.hasPathCapability(self._path(name), _CAPABILITY))

    def put_once(self, name: str, text: str) -> bool:
        """Puts the object if its name is free; otherwise returns False."""
        for is_last in (False, False, True):
            builder = self._files.createFile(self._path(name)).create().overwrite(False).recursive()
            try:
                _write(text, builder.must(_CONDITION, "true").build())
                return True
            except Py4JJavaError as error:
                found = str(error)
                if any(sign in found for sign in _TAKEN):
                    return False
                if is_last or _CONFLICT not in found:
                    raise
        return False

    def puts_unseen(self) -> bool:
        settings = self._files.getConf()  # including the bucket's
        flags = str(settings.get(_FLAGS, "")).replace(" ", "").lower().split(",")
        return bool({"create", "*"}.intersection(flags)) or bool(settings.getBoolean(_CREATE_UNSEEN, False))

    def delete(self, name: str) -> None:
        self._files.delete(self._path(name), False)

    def delete_all(self) -> None:
        """Deletes the folder, if it exists."""
        self._files.delete(self._path(""), True)

    def keeps_versions(self) -> bool:
        """True if the storage keeps or may keep former versions of objects; only S3 can be asked."""
        scheme = str(self._files.getUri().getScheme())
        if scheme not in ("s3", "s3a", "s3n"):
            return scheme not in ("file", "hdfs")
        try:
            client = self._files.getS3AInternals().getAmazonS3Client("versioning")
            request = java_class(self.spark, _VERSIONING).builder()
            status = client.getBucketVersioning(request.bucket(self._files.getUri().getHost()).build()).status()
        except (Py4JJavaError, Py4JError, TypeError):
            return True
        return status is not None  # even if the bucket no longer adds versions

    def _path(self, name: str) -> Any:
        return hadoop_path(self.spark, f"{self.folder}/{name}".rstrip("/"))


def _write(content: str | bytes, stream: Any) -> None:
    stream.write(bytearray(content.encode() if isinstance(content, str) else content))
    stream.close()
