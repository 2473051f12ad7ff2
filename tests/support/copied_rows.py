"""The rows in COPY's text and binary files, without where they are."""

from __future__ import annotations

from collections.abc import Iterator

from pgoutput_etl.postgres.copy_format import Field, binary_spans, text_spans


def text_rows(data: bytes, path: str, width: int) -> Iterator[list[Field]]:
    return (list(fields) for _, _, fields in text_spans(data, path, width))


def binary_rows(data: bytes, path: str, width: int) -> Iterator[list[Field]]:
    return (list(fields) for _, _, fields in binary_spans(data, path, width))
