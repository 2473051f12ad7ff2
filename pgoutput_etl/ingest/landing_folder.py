"""The landing folder: its listing, and scans of its files on executors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import SparkSession

from pgoutput_etl.compression import read_content
from pgoutput_etl.config.settings import Config, OnError
from pgoutput_etl.errors import ArchiveError, FramingError
from pgoutput_etl.ingest.binary_files import find_contents, read_file, scan_files
from pgoutput_etl.ingest.listing import gone, list_landing, list_names, oversized, reading_files, size_limit
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import KnownContents, LandedFile, ScanTask
from pgoutput_etl.masking.mask_rows import MaskingPolicy, withhold_rows
from pgoutput_etl.masking.policy import has_masks
from pgoutput_etl.scan.message_row import ScanError


class LandingFolder(Protocol):
    @property
    def config(self) -> Config: ...

    def lenient(self) -> LandingFolder:
        """The same folder, but reads damaged files as far as possible."""

    def listing(self) -> Listing:
        """Raises ConfigError if nothing exists there."""

    def names(self) -> list[str]:
        """The paths of all files, including empty ones."""

    def oversized(self, files: Iterable[LandedFile]) -> dict[str, ScanError]:
        """The errors of files that are too large, by path. Reads no file."""

    def scan(
        self, tasks: Mapping[str, ScanTask], known: KnownContents, policy: MaskingPolicy | None = None
    ) -> ScannedBlocks:
        """Blocks of the new messages in the files; the caller must release them. tasks: by path.

        If the configuration masks columns and there is no policy yet, the blocks have no rows of tables. Raises
        ArchiveError.
        """

    def find(self, paths: list[str], known: KnownContents) -> Mapping[int, Collection[str]]:
        """The files that begin with each known content, by the content's number. Raises ArchiveError."""

    def content(self, path: str) -> bytes:
        """A file's content, decompressed. Raises ArchiveError."""


@dataclass(frozen=True, slots=True)
class SparkLandingFolder:
    """A landing folder on any file system that Spark reads."""

    spark: SparkSession
    config: Config

    def lenient(self) -> SparkLandingFolder:
        return replace(self, config=replace(self.config, on_error=OnError.QUARANTINE))

    def listing(self) -> Listing:
        with reading_files([self.config.source.landing]):
            return list_landing(self.spark, self.config.source.landing)

    def names(self) -> list[str]:
        return list_names(self.spark, self.config.source.landing)

    def oversized(self, files: Iterable[LandedFile]) -> dict[str, ScanError]:
        return oversized(self.spark, files)

    def scan(
        self, tasks: Mapping[str, ScanTask], known: KnownContents, policy: MaskingPolicy | None = None
    ) -> ScannedBlocks:
        """Gets the driver's part and the rows from a single read."""
        config = self.config
        withhold = withhold_rows if has_masks(config) else None
        mask = withhold if policy is None else policy.mask
        with reading_files(tasks):
            salvages = config.on_error is OnError.QUARANTINE
            framing, landing = config.source.framing, config.source.landing
            blocks = scan_files(self.spark, tasks, known, framing, salvages, mask, landing)
            return ScannedBlocks.of(self.spark, blocks, sum(task.size for task in tasks.values()))

    def find(self, paths: list[str], known: KnownContents) -> Mapping[int, Collection[str]]:
        with reading_files(paths):
            return find_contents(self.spark, paths, known, self.config.source.landing)

    def content(self, path: str) -> bytes:
        try:
            with reading_files([path]):
                stored = read_file(self.spark, path, self.config.source.landing)
            return read_content(stored, path, size_limit(self.spark)).data
        except FileNotFoundError:
            raise gone(path) from None
        except FramingError as error:
            raise ArchiveError(f"{path}: {error}") from error
