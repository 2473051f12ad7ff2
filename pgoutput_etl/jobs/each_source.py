"""Runs a job for several sources in one file: one after another, in one Spark session, each with its own ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pgoutput_etl.config.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class SourceUse(Generic[Q]):
    """is_for_one: True for a request that only makes sense for a single source. of_source: the request for one of
    several."""

    is_for_one: Callable[[Q], bool] = lambda _: True
    of_source: Callable[[Q, Config], Q] = lambda request, _: request


@dataclass(slots=True)
class SharedSession:
    """spark: None until the first source needs a session."""

    spark: SparkSession | None = None


_SHARED: ContextVar[SharedSession | None] = ContextVar("shared_session", default=None)


def shared_session() -> SharedSession | None:
    """The session of all sources, within `one_session`."""
    return _SHARED.get()


@contextmanager
def one_session() -> Iterator[None]:
    """All jobs within the context share one Spark session, which ends with it."""
    shared = SharedSession()
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)
        if shared.spark is not None:
            from pgoutput_etl.spark.session import end_session

            with suppress(Exception):  # of a JVM that has ended
                end_session(shared.spark)
