"""conf/landing/upload.sh stores files once, checks them, and gives no secret to a command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3_lake import BUCKET, KEY, SECRET, Lake, lake
from tests.support.servers.landing_machine import CONF, settings, unit
from tests.support.unit_sandbox import is_available, sandboxed

NAME = "shop-0000001.bin.gz"
RCLONE = pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")

# Records its arguments, and keeps files in the folder of the environment's STORE, as `rclone` or `databricks`.
_STAND_IN = """#!/bin/bash
printf '%s\\n' "${0##*/} $*" >>"$STORE.log"
case "${0##*/} $1 $2" in
  "rclone backend features") echo '{"BucketBased": '"${IS_STORE:-true}"'}' ;;
  "rclone copy "*)
    read -r name
    [[ -n ${DROPS:-} ]] || cp "${@: -2:1}/$name" "$STORE/$name" ;;
  "rclone lsf "*) stat --format=%s "$STORE/${!###*/}" ;;
  "databricks fs cp")
    if [[ $3 == --overwrite ]]; then exec cp "$STORE/${4##*/}" "$5"; fi
    [[ -z ${DROPS:-} && ! -e $STORE/${4##*/} ]] || exit 1
    cp "$3" "$STORE/${4##*/}" ;;
esac
"""


class Uploads:
    """Calls upload.sh on the file NAME. environment: what it gets, with PATH."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder / "state" / "upload"
        self.folder.mkdir(parents=True)
        self.file = self.folder / NAME
        self.file.write_bytes(b"changes")
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}

    def __call__(self, path: Path | None = None, **changed: str) -> subprocess.CompletedProcess[str]:
        command = [str(CONF / "upload.sh"), str(path or self.file)]
        environment = {**self.environment, **changed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


class StandIns(Uploads):
    """With stand-ins for the programs."""

    def __init__(self, folder: Path) -> None:
        self.store, programs = folder / "store", folder / "bin"
        super().__init__(folder, STORE=str(self.store))
        for path in (self.store, programs):
            path.mkdir()
        for name in ("rclone", "databricks"):
            (programs / name).write_text(_STAND_IN)
            (programs / name).chmod(0o755)
        self.environment["PATH"] = f"{programs}:{os.environ['PATH']}"

    @property
    def calls(self) -> list[str]:
        log = self.store.with_suffix(".log")
        calls = log.read_text().splitlines()
        log.unlink()
        return calls


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


def test_rclone_is_told_to_compare_and_to_replace_nothing(stand_ins: StandIns) -> None:
    assert stand_ins(UPLOAD_TO="lake:bucket/landing/").returncode == 0
    copy = "rclone copy --files-from-raw=- --no-traverse --checksum --immutable --log-level=ERROR"
    assert stand_ins.calls == [
        "rclone backend features --log-level=ERROR lake:",
        f"{copy} {stand_ins.folder} lake:bucket/landing",
        f"rclone lsf --format=s --log-level=ERROR lake:bucket/landing/{NAME}",
    ]
    assert (stand_ins.store / NAME).read_bytes() == b"changes"


def test_a_file_that_the_store_lacks_or_cuts_is_not_uploaded(stand_ins: StandIns) -> None:
    """rclone ends with 0 if it takes no file for the named one."""
    done = stand_ins(UPLOAD_TO="lake:bucket/landing", DROPS="yes")
    assert done.returncode != 0
    (stand_ins.store / NAME).write_bytes(b"chang")
    done = stand_ins(UPLOAD_TO="lake:bucket/landing", DROPS="yes")
    assert done.returncode != 0
    assert done.stderr == f"'{NAME}' is not uploaded: lake:bucket/landing has no file with this name and size\n"


@pytest.mark.parametrize(
    "to", ["/data/landing", ":s3,access_key_id=KEYMARKER:lake", "lake,env_auth=true:x", "s3", "-x:y"]
)
def test_a_store_without_a_remotes_name_is_refused(stand_ins: StandIns, to: str) -> None:
    """rclone would take settings, also secrets, from such an argument."""
    done = stand_ins(UPLOAD_TO=to)
    assert done.returncode == 1
    assert "UPLOAD_TO: expected the name of a remote, a colon, and a path" in done.stderr
    assert "KEYMARKER" not in done.stderr
    assert not stand_ins.store.with_suffix(".log").exists()


def test_a_store_that_shows_incomplete_files_is_refused(stand_ins: StandIns) -> None:
    done = stand_ins(UPLOAD_TO="disk:/landing", IS_STORE="false")
    assert (done.returncode, [*stand_ins.store.iterdir()]) == (1, [])
    assert "UPLOAD_TO=disk:/landing: expected an object store, such as S3, ADLS, or GCS" in done.stderr


def test_a_volume_of_databricks_is_written_once_and_read_back(stand_ins: StandIns) -> None:
    volume = "dbfs:/Volumes/main/landing/shop"
    for _ in range(2):
        done = stand_ins(UPLOAD_TO=volume)
        assert (done.returncode, done.stderr) == (0, "")
        assert stand_ins.calls == [
            f"databricks fs cp {stand_ins.file} {volume}/{NAME}",
            f"databricks fs cp --overwrite {volume}/{NAME} {stand_ins.file}.stored",
        ]
    assert [path.name for path in stand_ins.folder.iterdir()] == [NAME]
    stand_ins.file.write_bytes(b"others!")
    done = stand_ins(UPLOAD_TO=volume)
    assert done.returncode == 1
    assert f"'{NAME}' is not uploaded: {volume} has another file of this name" in done.stderr
    assert (stand_ins.store / NAME).read_bytes() == b"changes"
    (stand_ins.store / NAME).unlink()
    assert stand_ins(UPLOAD_TO=volume, DROPS="yes").returncode != 0


def test_without_a_store_or_a_file_nothing_is_called(stand_ins: StandIns) -> None:
    assert "UPLOAD_TO: expected where to store files" in stand_ins().stderr
    done = stand_ins(stand_ins.folder / "none", UPLOAD_TO="lake:bucket")
    assert (done.returncode, "expected the absolute path of a file" in done.stderr) == (1, True)
    assert not stand_ins.store.with_suffix(".log").exists()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def uploads(tmp_path: Path, store: Lake) -> Uploads:
    """To an S3 server, with the settings of shop.env's example except for Amazon's own."""
    example = [line.removeprefix("#") for line in (CONF / "shop.env").read_text().splitlines() if "LAKE_" in line]
    own = {"PROVIDER": "Other", "ENDPOINT": store.url, "REGION": "us-east-1"}
    environment = {
        **settings("\n".join(example)),
        **{f"RCLONE_CONFIG_LAKE_{name}": value for name, value in own.items()},
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "UPLOAD_TO": f"lake:{BUCKET}/{tmp_path.name}",
    }
    return Uploads(tmp_path, **environment)


@RCLONE
def test_a_landed_file_is_uploaded_to_s3_once(uploads: Uploads, store: Lake, tmp_path: Path) -> None:
    def writes() -> list[str]:
        return [path for kind, path in store.served().requests if kind not in ("HEAD", "LIST", "GET")]

    key, before = f"{tmp_path.name}/{NAME}", len(writes())
    for _ in range(2):
        done = uploads()
        assert (done.returncode, done.stderr) == (0, "")
        assert writes()[before:] == [f"/{BUCKET}/{key}"], "it may be called again, and asks for no bucket"
    assert store.content(key) == b"changes"
    uploads.file.write_bytes(b"others!")
    done = uploads()
    assert done.returncode != 0
    assert "immutable file modified" in done.stderr
    assert store.content(key) == b"changes"


@RCLONE
@pytest.mark.skipif(not is_available(), reason="this machine can't imitate the units' restrictions")
@pytest.mark.parametrize("name", ["pg-landing@.service", "pg-landing-copy@.service"])
def test_rclone_works_with_the_restrictions_of_a_unit(uploads: Uploads, store: Lake, tmp_path: Path, name: str) -> None:
    command = [str(CONF / "upload.sh"), str(uploads.file)]
    command = sandboxed(unit(CONF / name), [tmp_path / "state"], command)
    done = subprocess.run(command, env=uploads.environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert store.content(f"{tmp_path.name}/{NAME}") == b"changes"


@RCLONE
@pytest.mark.parametrize("source", ["a:b", "-rf", "two words", "# x", "[s]*{p}", "shöp", "$(>ran)", "\uff05"])
def test_any_sources_name_is_a_name(uploads: Uploads, store: Lake, tmp_path: Path, source: str) -> None:
    file = uploads.folder / f"{source}-0000001.bin"
    file.write_bytes(source.encode())
    done = uploads(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert store.content(f"{tmp_path.name}/{file.name}") == source.encode()


@RCLONE
def test_errors_of_the_store_are_errors(uploads: Uploads) -> None:
    for changed in ({"UPLOAD_TO": "lake:no-such-bucket/x"}, {"UPLOAD_TO": "other:lake/x"}):
        done = uploads(uploads.file, **changed)
        assert done.returncode != 0
        assert SECRET not in done.stdout + done.stderr


@RCLONE
def test_rclone_says_which_stores_show_incomplete_files(uploads: Uploads, tmp_path: Path) -> None:
    done = uploads(RCLONE_CONFIG_DISK_TYPE="local", UPLOAD_TO=f"disk:{tmp_path}")
    assert (done.returncode, "expected an object store" in done.stderr) == (1, True)
    remotes = {"GCS": {"TYPE": "google cloud storage", "ANONYMOUS": "true"}}
    remotes["ADLS"] = {"TYPE": "azureblob", "ACCOUNT": "shop", "KEY": "a2V5"}
    for name, options in remotes.items():
        environment = {f"RCLONE_CONFIG_{name}_{option}": value for option, value in options.items()}
        command = ["rclone", "backend", "features", f"{name}:"]
        environment = {**uploads.environment, **environment}
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        assert '"BucketBased": true' in shown.stdout
