"""Classes of the JVM by their full names.

`_jvm.org.apache.hadoop.fs.Path` asks the JVM what each part of the name is, and for each part that isn't a class, the
JVM searches all jars. This took a third of the JVM's time for small tables.
"""

from __future__ import annotations

from typing import Any, cast

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

_HADOOP_PATH = "org.apache.hadoop.fs.Path"


def java_class(spark: SparkSession, name: str) -> Any:
    """name: with a dollar sign before an inner class. If the class doesn't exist, the first call raises Py4JError."""
    return JavaClass(name, cast(Any, spark)._jvm._gateway_client)


def scala_object(spark: SparkSession, name: str) -> Any:
    """The only instance of a Scala object. Raises Py4JError if there is none."""
    return getattr(java_class(spark, f"{name}$"), "MODULE$")


def to_scala_map(spark: SparkSession, values: dict[str, Any]) -> Any:
    return _utilities(spark).toScalaMap(values)


def to_scala_seq(spark: SparkSession, values: list[Any]) -> Any:
    return _utilities(spark).toSeq(values)


def scala_option(spark: SparkSession, value: Any) -> Any:
    """The value as a Scala Option; empty for None."""
    return java_class(spark, "scala.Option").apply(value)


def hadoop_path(spark: SparkSession, *parts: Any) -> Any:
    return java_class(spark, _HADOOP_PATH)(*parts)


def _utilities(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.spark.api.python.PythonUtils")
