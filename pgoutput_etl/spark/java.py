"""Classes of the JVM by their full names.

`_jvm.org.apache.hadoop.fs.Path` asks the JVM what each part of the name is, and for each part that is no class, the JVM
searches all jars: that was a third of the time that it spent on small tables.
"""

from __future__ import annotations

from typing import Any, cast

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

_HADOOP_PATH = "org.apache.hadoop.fs.Path"


def java_class(spark: SparkSession, name: str) -> Any:
    """name: an inner class is behind a dollar sign. Whether there is such a class, the first call shows: without it, it
    raises Py4JError."""
    return JavaClass(name, cast(Any, spark)._jvm._gateway_client)


def scala_object(spark: SparkSession, name: str) -> Any:
    """The only instance of a Scala object. Raises Py4JError if there is none."""
    return getattr(java_class(spark, f"{name}$"), "MODULE$")


def to_scala_map(spark: SparkSession, values: dict[str, Any]) -> Any:
    return _utilities(spark).toScalaMap(values)


def to_scala_seq(spark: SparkSession, values: list[Any]) -> Any:
    return _utilities(spark).toSeq(values)


def scala_option(spark: SparkSession, value: Any) -> Any:
    """None without a value."""
    return java_class(spark, "scala.Option").apply(value)


def hadoop_path(spark: SparkSession, *parts: Any) -> Any:
    return java_class(spark, _HADOOP_PATH)(*parts)


def _utilities(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.spark.api.python.PythonUtils")
