"""Only plain files are read, also if a name becomes something else after it was listed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pgoutput_etl import plain_file
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.inspection.local_runner import list_local, read_local
from pgoutput_etl.plain_file import PlainFileError, outside_root, root_of
from tests.support.mutations import no_hang

SECRET = b"a key that only this user may read"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a plain file, and with everything else that a name can be."""
    secret, folder = tmp_path / "home" / "id_rsa", tmp_path / "landing"
    secret.parent.mkdir()
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "1.bin").write_bytes(b"plain")
    (folder / "2.bin").symlink_to(secret)
    (folder / "3.bin").symlink_to(tmp_path / "nowhere")
    (folder / "4").symlink_to(secret.parent)
    (folder / "circle").symlink_to(folder)
    (folder / "5.bin").mkdir()
    os.mkfifo(folder / "6.bin")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "7.bin"))
    return folder


def test_a_folder_has_its_plain_files_and_names_what_else_is_there(hostile: Path) -> None:
    listing = list_local([str(hostile)])
    assert [file.path for file in listing.files()] == [f"{hostile}/sub/1.bin"]
    kinds = {Path(path).name: reason.partition("found ")[2] for path, reason in listing.not_plain.items()}
    assert {name: kind.partition(":")[0] for name, kind in kinds.items()} == {
        **dict.fromkeys(("2.bin", "3.bin", "4", "circle"), "a symbolic link"),
        "6.bin": "a FIFO",
        "7.bin": "a socket",
    }


def test_a_glob_matches_nothing_behind_a_link(hostile: Path) -> None:
    listing = list_local([f"{hostile}/*/*"])
    assert [file.path for file in listing.files()] == [f"{hostile}/sub/1.bin"]
    assert f"{hostile}/4/id_rsa" in listing.not_plain
    assert list_local([f"{hostile}/*.bin"]).files() == []


def test_the_user_may_name_a_link(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").symlink_to(hostile)
    (tmp_path / "one.bin").symlink_to(hostile / "sub" / "1.bin")
    assert [file.path for file in list_local([f"{tmp_path}/mount"]).files()] == [f"{tmp_path}/mount/sub/1.bin"]
    [file] = list_local([f"{tmp_path}/one.bin"]).files()
    assert read_local(file.path) == b"plain"


@pytest.mark.parametrize("name", ["2.bin", "4/id_rsa", "circle/sub/1.bin", "5.bin", "6.bin", "7.bin"])
def test_a_file_that_was_replaced_since_it_was_listed_is_refused(hostile: Path, name: str) -> None:
    with no_hang(10), pytest.raises(PlainFileError, match=r"expected a plain file, found (a|one) ") as refused:
        plain_file.read(f"{hostile}/{name}", str(hostile))
    assert SECRET.decode() not in str(refused.value)


def test_a_fifo_does_not_hang_the_job_that_a_user_names_it_to(hostile: Path) -> None:
    with no_hang(10):
        assert "a FIFO" in list_local([f"{hostile}/6.bin"]).not_plain[f"{hostile}/6.bin"]
        with pytest.raises(ArchiveError, match="a FIFO"):
            read_local(f"{hostile}/6.bin")


def test_a_plain_file_is_read_up_to_the_limit(hostile: Path) -> None:
    path = f"{hostile}/sub/1.bin"
    assert plain_file.read(path, str(hostile), 5) == plain_file.read(path) == b"plain"
    with pytest.raises(ArchiveError, match=r"1\.bin has 5 bytes, and at most 4 can be read"):
        plain_file.read(path, str(hostile), 4)
    with pytest.raises(FileNotFoundError):
        plain_file.read(f"{hostile}/sub/none.bin", str(hostile))


def test_the_root_is_the_folder_before_the_first_wildcard(hostile: Path) -> None:
    assert root_of(str(hostile)) == root_of(f"{hostile}/*.bin") == root_of(f"{hostile}/{{a,b}}/c") == str(hostile)
    assert root_of(f"{hostile}/sub/1.bin") == f"{hostile}/sub"
    assert root_of("/*") == "/"


def test_an_error_has_the_whole_path(tmp_path: Path) -> None:
    gone = str(tmp_path / "sub" / "gone.bin")
    (tmp_path / "sub").mkdir()
    for root in (None, str(tmp_path)):
        with pytest.raises(FileNotFoundError, match=gone):
            plain_file.read(gone, root)


def test_names_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    (tmp_path / "1.bin").write_bytes(b"plain")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.bin")).write_bytes(b"no name")
    listing = list_local([str(tmp_path)])
    assert [Path(file.path).name for file in listing.files()] == ["1.bin"]
    [reason] = listing.not_plain.values()
    assert reason == f"{tmp_path}/\\xff.bin: expected a name in UTF-8: rename the file"


def test_hidden_names_are_those_of_spark(tmp_path: Path) -> None:
    for folder in ("_dt=1", "_temporary", ".git", "dt=1"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.bin").write_bytes(b"plain")
    names = {Path(file.path).parent.name for file in list_local([str(tmp_path)]).files()}
    assert names == {"_dt=1", "dt=1"}


@pytest.mark.parametrize(
    ("path", "landing", "is_below"),
    [
        ("s3a://lake/landing/shop/1.bin", "s3a://lake/landing/shop/", True),
        ("s3a://lake/landing/shop/1.bin", "s3a://lake/landing/*/", True),
        ("s3a://lake/1.bin", "s3a://lake", True),
        ("s3a://lake/landing/1.bin", "s3a://lake//landing", True),
        ("hdfs://node:8020/landing/1?#.bin", "hdfs:///landing", True),
        ("hdfs://node:8020/user/etl/landing/1.bin", "landing", True),
        ("s3a://lake/secret/1.bin", "s3a://lake/landing/shop", False),
        ("s3a://lake/landing/shopping/1.bin", "s3a://lake/landing/shop", False),
        ("s3a://lake/secret/1.bin", "s3a://lake/landing/*/", False),
    ],
)
def test_an_object_is_below_the_landing_folder(path: str, landing: str, is_below: bool) -> None:
    assert outside_root([path], landing) == ([] if is_below else [path])
