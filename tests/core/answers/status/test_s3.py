"""Status of a source on an S3 server, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pgoutput_etl.answers.status.landing_folder import list_files
from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.config.object_storage import S3Settings, place_of, without_secrets
from pgoutput_etl.errors import ConfigError, RunError
from tests.support.s3_lake import BUCKET, KEY, LANDING, SECRET, Lake, lake
from tests.support.small_ledger import SmallLedger, state

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=timezone.utc)
S3A = "spark.hadoop.fs.s3a"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake(tmp_path_factory.mktemp("s3")) as s3_lake:
        yield s3_lake


@pytest.fixture(autouse=True)
def _without_the_machines_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def settings(url: str, with_keys: bool = True) -> dict[str, str]:
    endpoint = {f"{S3A}.endpoint": url, f"{S3A}.path.style.access": "true"}
    return {**endpoint, f"{S3A}.access.key": KEY, f"{S3A}.secret.key": SECRET} if with_keys else endpoint


def overrides(spark: dict[str, str], root: str) -> list[str]:
    own = [f"spark.{name}={value}" for name, value in spark.items()]
    return [f"state.root={root}", f"source.landing=s3a://{BUCKET}/{LANDING}", *own]


@pytest.mark.parametrize("with_keys", [True, False])
def test_ledger_and_landing_on_s3(s3: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_keys: bool) -> None:
    root = f"s3a://{BUCKET}/tables{with_keys}/_pgoutput_etl"
    spark = settings(s3.url, with_keys)
    if not with_keys:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    place = place_of(root, spark, "state.root")
    ledger = SmallLedger(tmp_path, root=place.delta_url, options=place.delta_options)
    config = ledger.config(*overrides(spark, root))
    for name in ("1.bin", "2.bin", ".3.bin", "sub/4.bin", "_sub/5.bin", "empty.bin"):
        s3.put(f"{LANDING}/{name}", b"" if name == "empty.bin" else b"x" * 10)
    assert status(config, StatusRequest(), NOW).waiting.files == 3

    landed = {file.path: file for file in list_files(config.source.landing, spark).files()}
    assert set(landed) == {f"s3a://{BUCKET}/{LANDING}/{name}" for name in ("1.bin", "2.bin", "sub/4.bin")}
    known = landed[f"s3a://{BUCKET}/{LANDING}/1.bin"]
    modified = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=known.modified)
    ledger.read(1, ledger.land("1.bin", 10), path=known.path, modified=modified)
    ledger.finish(1, NOW, 0x100, [state(1, "t", 5)])
    report = status(config, StatusRequest(), NOW)
    assert (report.batch, report.lsn, report.waiting.files, report.waiting.bytes) == (1, "0/100", 2, 20)


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*.bin", ["a1.bin", "b1.bin"]),
        ("{a,c}*.bin", ["a1.bin"]),
        ("s*", ["s1/c1.bin", "s2/d1.bin"]),
        ("s[^1]/d?.bin", ["s2/d1.bin"]),
    ],
)
def test_the_landing_folder_on_s3_may_be_a_glob(s3: Lake, glob: str, names: list[str]) -> None:
    for name in ("a1.bin", "b1.bin", "s1/c1.bin", "s2/d1.bin"):
        s3.put(f"globs/{name}", b"x")
    listed = list_files(f"s3a://{BUCKET}/globs/{glob}", settings(s3.url)).files()
    assert sorted(file.path for file in listed) == [f"s3a://{BUCKET}/globs/{name}" for name in names]


def test_an_empty_prefix_does_not_exist(s3: Lake) -> None:
    with pytest.raises(ConfigError, match=r"source\.landing: s3a://lake/none does not exist"):
        list_files(f"s3a://{BUCKET}/none", settings(s3.url))


def test_an_unreachable_store_is_reported_without_secrets(tmp_path: Path) -> None:
    spark, root = settings("http://127.0.0.1:9"), f"s3a://{BUCKET}/tables"
    config = SmallLedger(tmp_path).config(*overrides(spark, root))
    with pytest.raises(RunError, match=r"can't be (read|listed)") as refused:
        status(config, StatusRequest(), NOW)
    assert KEY not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_settings_of_a_bucket_take_precedence_and_secrets_are_not_shown() -> None:
    spark = {
        f"{S3A}.endpoint": "minio:9000",
        f"{S3A}.connection.ssl.enabled": "false",
        f"{S3A}.bucket.lake.endpoint": "other:9000",
        f"{S3A}.access.key": KEY,
        f"{S3A}.secret.key": SECRET,
        f"{S3A}.session.token": "token-7f9d",
        f"{S3A}.endpoint.region": "eu-central-1",
    }
    lake_settings, others = S3Settings.of(spark, "lake"), S3Settings.of(spark, "pond")
    assert (lake_settings.endpoint, others.endpoint) == ("http://other:9000", "http://minio:9000")
    assert lake_settings.delta_options["AWS_REGION"] == "eu-central-1"
    assert lake_settings.delta_options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == "true"
    place = place_of("s3a://lake/a/b", spark, "state.root")
    assert place.delta_url == "s3://lake/a/b"
    assert KEY not in repr(place)
    assert SECRET not in repr(place)
    text = without_secrets(f"403\n \x1b[31m{KEY}\x1b[0m {SECRET} token-7f9d", place)
    assert text == "403 *** *** ***"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/x", "/data/x"),
        ("data/x", "data/x"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data/x", "/data/x"),
        ("/Volumes/main/shop/x", "/Volumes/main/shop/x"),
        ("dbfs:/Volumes/main/shop/x", "/Volumes/main/shop/x"),
    ],
)
def test_paths_of_this_machine(url: str, path: str) -> None:
    assert place_of(url, {}, "state.root").delta_url == path


@pytest.mark.parametrize("url", ["abfss://a@b.dfs.core.windows.net/c", "gs://a/b", "hdfs://a/b", "dbfs:/x"])
def test_other_storage_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="can't be read without Spark"):
        place_of(url, {}, "state.root")
