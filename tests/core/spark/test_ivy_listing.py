"""The standard error of a starting JVM."""

from __future__ import annotations

from pgoutput_etl.spark.ivy_listing import copy_without_listing

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
