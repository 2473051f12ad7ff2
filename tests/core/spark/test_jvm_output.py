"""The standard error of a starting JVM, and of one that runs a job."""

from __future__ import annotations

import json

import pytest

from pgoutput_etl.spark.jvm_output import GUARD, WITHHELD, as_json, copy_without_listing, without_values

LISTING = [
    ":: loading settings :: url = jar:file:/ivysettings.xml",
    "Ivy Default Cache set to: /ivy2/cache",
    "downloading https://repo1.maven.org/maven2/io/delta/delta.jar ...",
    "\t[SUCCESSFUL ] io.delta#delta;4.4.0!delta.jar (90ms)",
]
DOWNLOAD = "downloading https://repo1.maven.org/maven2/io/delta/delta.jar"


def copied(*lines: str) -> list[str]:
    written: list[bytes] = []
    copy_without_listing((f"{line}\n".encode() for line in lines), written.append)
    return b"".join(written).decode().splitlines()


def test_only_downloads_remain_of_a_listing_that_ends() -> None:
    lines = copied(*LISTING, "\t1 artifacts copied, 0 already retrieved (9kB/77ms)", "12:00:00 WARN Disk: full")
    assert lines == [DOWNLOAD, "12:00:00 WARN Disk: full"]


def test_a_failure_shows_everything() -> None:
    assert copied(*LISTING, "unresolved dependency") == [DOWNLOAD, *LISTING, "unresolved dependency"]


def test_without_a_listing_only_remarks_on_the_jvms_options_are_left_out() -> None:
    remarks = ("NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g", "WARNING: Using incubator modules: jdk.incubator.vector")
    assert copied(*remarks, "Error: no") == ["Error: no"]


CANARY = "s3cr3t-canary-41"


def guarded(*lines: str) -> list[str]:
    return b"".join(without_values(f"{line}\n".encode() for line in lines)).decode().splitlines()


def test_everything_is_copied_until_the_session_has_started() -> None:
    lines = ["Error: no Java", "12:00:00 ERROR SparkContext: Error initializing", "anything"]
    assert guarded(*lines, GUARD, "anything") == [*lines, WITHHELD.decode().strip()]


def test_stacks_are_only_for_debugging() -> None:
    error, *stack = "java.io.IOException: no space", "\tat org.apache.spark.Task.run(Task.scala:147)", "\t... 10 more"
    assert guarded(error, *stack) == [error]
    lines = [f"{line}\n".encode() for line in (error, *stack)]
    assert list(without_values(lines, is_debugging=True)) == lines


def test_no_line_of_a_running_job_has_a_value() -> None:
    printed = guarded(
        GUARD,
        f"{CANARY} printed by a worker",
        "PySpark worker failed with exception:",
        "Traceback (most recent call last):",
        f"ValueError: invalid literal for int() with base 10: '{CANARY}'",
        f'Exception in thread "task 1" java.lang.IllegalStateException: {CANARY}',
        f"of two lines: {CANARY}",
        "\tat org.apache.spark.Task.run(Task.scala:147)",
        f"Caused by: java.lang.RuntimeException: {CANARY}",
        f"org.postgresql.util.PSQLException: {CANARY}",
    )
    assert printed == [
        WITHHELD.decode().strip(),
        'Exception in thread "task 1" java.lang.IllegalStateException',
        "org.postgresql.util.PSQLException",
    ]


def test_words_of_the_jvm_and_of_the_log_remain() -> None:
    lines = [
        "12:00:00 WARN MemoryStore: Not enough space to cache rdd_4_0",
        "12:00:00 INFO DAGScheduler:",
        "12:00:00 ERROR Utils: (org.apache.spark.SparkException)",
        "OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory failed",
        "Terminating due to java.lang.OutOfMemoryError: Java heap space",
        "# There is insufficient memory for the Java Runtime Environment to continue.",
        "Deleted 3 files (1204 bytes) and directories in a total of 1 directories",
    ]
    assert guarded(GUARD, *lines, GUARD, "\tat a.B.c(B.java:1)", "") == lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("12:00:00 WARN MemoryStore: Not enough space", ("WARNING", "spark.MemoryStore", "Not enough space")),
        ("12:00:00 INFO DAGScheduler:", ("INFO", "spark.DAGScheduler", "")),
        ("12:00:00 FATAL Utils: (a.B)", ("CRITICAL", "spark.Utils", "(a.B)")),
        (WITHHELD.decode().strip(), ("WARNING", "spark", WITHHELD.decode().strip())),
        ('\x1b[1m"', ("WARNING", "spark", '\x1b[1m"')),
    ],
)
def test_a_line_as_json(line: str, expected: tuple[str, str, str]) -> None:
    printed = as_json(f"{line}\n".encode())
    assert printed.count(b"\n") == 1
    values = json.loads(printed)
    assert values.pop("time").endswith("+00:00")
    assert tuple(values.values()) == expected
