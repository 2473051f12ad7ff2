"""The scripts of conf/landing run no text as code, follow no links, and lose nothing, whoever writes to LANDING."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers.landing_machine import CONF

# Evaluated as a number, it creates the file `ran` in the current folder.
CODE = "0+PPID[$(>ran)0]"
HEALTHY = "t|reserved|1|1||1||"
IS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


class Shop:
    """A source whose receiver has ended, with LANDING outside its state."""

    def __init__(self, folder: Path, source: str = "shop") -> None:
        self.folder, self.source = folder, source
        self.state, self.landing = folder / "state", folder / "landing"
        self.complete = self.state / "complete"
        for path in (self.complete, self.landing, folder / "bin"):
            path.mkdir(parents=True)
        (self.state / "receiver.lock").touch()
        self.victim = folder / "victim"
        self.victim.write_bytes(b"secret")

    def program(self, name: str, text: str) -> Path:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def receive(self, text: bytes) -> None:
        (self.state / "current").write_bytes(text)

    def run(self, script: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "LANDING": str(self.landing),
            "ROTATE_SECONDS": "0",
            "COMPRESS": "gzip",
            "SLOT": "etl",
            "PUBLICATION": "etl",
            "PGDATABASE": "shop",
            "PGHOST": str(self.folder),
            **settings,
        }
        command = [str(CONF / script), self.source, str(self.state)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            umask=0o022,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not (self.folder / "ran").exists(), "text was run as code"
        assert self.victim.read_bytes() == b"secret"
        return done

    def rotate(self, **settings: str) -> subprocess.CompletedProcess[str]:
        return self.run("rotate.sh", **settings)

    @property
    def landed(self) -> dict[str, bytes]:
        """The content of each plain file that a job would read."""
        files = [path for path in self.landing.iterdir() if path.name[0] != "." and path.suffix == ".gz"]
        return {path.name: gzip.decompress(path.read_bytes()) for path in files if path.is_file()}

    @property
    def kept(self) -> list[bytes]:
        """Received content that has not landed."""
        files = [self.state / "renamed", *self.complete.glob(f"{self.source}-*")]
        return [path.read_bytes() for path in files if path.is_file()]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize("script", ["rotate.sh", "copy.sh"])
@pytest.mark.parametrize("folder", ["complete", "landing"])
def test_a_name_is_not_run_as_code(shop: Shop, script: str, folder: str) -> None:
    hostile = getattr(shop, folder) / f"shop-{CODE}.bin"
    hostile.write_bytes(b"hostile")
    shop.receive(b"received")
    done = shop.run(script)  # copy.sh has no server
    assert done.returncode != 0
    assert hostile.read_bytes() == b"hostile"
    if script == "rotate.sh":
        assert "PPID[$(>ran)0].bin' stays: expected a name such as shop-0000001.bin\n" in done.stderr
        assert shop.landed == {"shop-0000001.bin.gz": b"received"}


@pytest.mark.parametrize(
    "name",
    ["shop-9999999999999999999.bin", "shop-1\n2.bin", "-rf", ".hidden", "shop-0x7.bin", "shop-1.bin.part", "*"],
)
def test_other_names_are_reported_and_received_changes_land(shop: Shop, name: str) -> None:
    """19 digits are too many for Bash's numbers: they became a number that never landed."""
    (shop.complete / name).write_bytes(b"hostile")
    shop.receive(b"received")
    done = shop.rotate()
    assert (done.returncode, shop.landed) == (1, {"shop-0000001.bin.gz": b"received"})
    assert set(done.stderr.splitlines()) == {done.stderr.splitlines()[0]}, "a line each time"
    assert " stays: expected a name such as shop-0000001.bin" in done.stderr
    assert (shop.complete / name).read_bytes() == b"hostile"


def test_a_number_of_19_digits_in_landing_does_not_count(shop: Shop) -> None:
    (shop.landing / "shop-9223372036854775808.bin").write_bytes(b"hostile")
    shop.receive(b"received")
    assert shop.rotate().returncode == 1
    assert shop.landed == {"shop-0000001.bin.gz": b"received"}


def test_files_of_a_source_with_a_longer_name_are_not_reported(shop: Shop) -> None:
    (shop.landing / "shop-2-0000007.bin.zst").write_bytes(b"other")
    shop.receive(b"received")
    done = shop.rotate()
    assert (done.returncode, done.stderr) == (0, "")
    assert shop.landed == {"shop-0000001.bin.gz": b"received"}


@pytest.mark.parametrize("source", ["s[h]*p", "s.o(p+", "-rf", "$(>ran)", "two words"])
def test_a_sources_name_is_not_a_pattern(tmp_path: Path, source: str) -> None:
    shop = Shop(tmp_path, source)
    for other in ("shp-0000005.bin.gz", "shop-0000006.bin.gz", "sxoop-0000007.bin.gz"):
        (shop.landing / other).write_bytes(gzip.compress(b"other"))
    for text in (b"first", b"second"):
        shop.receive(text)
        done = shop.rotate()
        assert (done.returncode, done.stderr) == (0, "")
    assert shop.landed[f"{source}-0000001.bin.gz"] == b"first"
    assert shop.landed[f"{source}-0000002.bin.gz"] == b"second"


@pytest.mark.parametrize("source", [".shop", "_shop", "a\nb"])
def test_a_source_whose_files_no_job_would_read_is_refused(tmp_path: Path, source: str) -> None:
    shop = Shop(tmp_path, source)
    shop.receive(b"received")
    done = shop.rotate()
    assert done.returncode == 1
    assert "expected a source's name" in done.stderr
    assert (shop.state / "current").read_bytes() == b"received"


@pytest.mark.parametrize("last", [CODE, "", "-1", "1" * 19, "999999999999999999"])
def test_without_a_valid_next_number_nothing_lands_and_nothing_is_lost(shop: Shop, last: str) -> None:
    (shop.state / "last").write_text(f"{last}\n")
    shop.receive(b"received")
    done = shop.rotate()
    assert done.returncode == 1
    assert ("no number is left" if last == "9" * 18 else f"{shop.state}/last has '{last}': expected") in done.stderr
    assert (shop.landed, shop.kept) == ({}, [b"received"])
    (shop.state / "last").write_text("999999999999999998\n")
    assert shop.rotate().returncode == 0
    assert shop.landed == {"shop-999999999999999999.bin.gz": b"received"}


SETTINGS = [
    *[("rotate.sh", name) for name in ("ROTATE_BYTES", "ROTATE_SECONDS", "ROTATE_PATIENCE")],
    *[("watch.sh", f"MAX_{name}") for name in ("RETAINED_BYTES", "CATALOG_AGE", "WAITING_SECONDS", "DISK_PERCENT")],
    *[("run.sh", f"{name}_SECONDS") for name in ("RESTART", "CHECK", "WATCH")],
]


@pytest.mark.parametrize(("script", "name"), SETTINGS)
def test_a_setting_that_is_no_number_is_an_error(shop: Shop, script: str, name: str) -> None:
    shop.program("psql", f"echo '{HEALTHY}'")
    shop.receive(b"received")
    done = shop.run(script, **{name: CODE})
    assert done.returncode == 1
    assert f"shop: {name}='{CODE}': expected a number of at most 18 digits\n" in done.stderr
    assert (shop.state / "current").read_bytes() == b"received"


def test_numbers_of_settings_are_decimal(shop: Shop) -> None:
    shop.receive(b"received")
    assert shop.rotate(ROTATE_BYTES="0000008", ROTATE_SECONDS="0900").returncode == 0
    assert shop.landed == {"shop-0000001.bin.gz": b"received"}


@pytest.mark.parametrize("column", range(8))
def test_a_row_of_the_server_is_not_run_as_code(shop: Shop, column: int) -> None:
    row = HEALTHY.split("|")
    row[column] = CODE
    shop.program("psql", f"echo '{'|'.join(row)}'")
    done = shop.run("watch.sh", MAX_DISK_PERCENT="100")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "shop: the server's answer about its slot etl is not what watch.sql asks for\n"


def test_the_watch_reports_all_that_waits(shop: Shop) -> None:
    shop.program("psql", f"echo '{HEALTHY}'")
    assert shop.run("watch.sh", MAX_DISK_PERCENT="100").returncode == 0
    (shop.complete / f".{CODE}").touch()
    os.utime(shop.complete / f".{CODE}", (1_700_000_000, 1_700_000_000))
    done = shop.run("watch.sh", MAX_DISK_PERCENT="100")
    assert done.returncode == 1
    assert f"shop: '{shop.complete}/.{CODE}' has waited for more than 3600 seconds\n" in done.stderr


def link(shop: Shop, path: Path) -> None:
    path.symlink_to(shop.victim)


def dangling(shop: Shop, path: Path) -> None:
    path.symlink_to(shop.folder / "none")


def fifo(_shop: Shop, path: Path) -> None:
    os.mkfifo(path)


def folder(_shop: Shop, path: Path) -> None:
    path.mkdir()


def plain(_shop: Shop, path: Path) -> None:
    path.write_bytes(b"other")


Put = Callable[[Shop, Path], None]


def identity(path: Path) -> tuple[int, ...]:
    """What changes if `path` is replaced or written. Looking at a link changes its access time."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns


@pytest.mark.parametrize("put", [link, dangling, fifo, folder])
def test_only_plain_files_of_complete_land(shop: Shop, put: Put) -> None:
    put(shop, shop.complete / "shop-0000001.bin")
    shop.receive(b"received")
    done = shop.rotate()
    assert done.returncode == 1
    assert "shop-0000001.bin' stays: expected a plain file" in done.stderr
    assert b"secret" not in shop.landed.values()
    assert b"received" in [*shop.landed.values(), *shop.kept]


@pytest.mark.parametrize("put", [link, dangling, fifo, folder, plain])
@pytest.mark.parametrize("name", ["shop-0000001.bin.gz", "shop-1.pgcopy"])
def test_a_name_in_landing_with_the_next_number_is_not_replaced(shop: Shop, put: Put, name: str) -> None:
    shop.receive(b"received")
    shop.rotate(COMPRESS="rar")  # the file has its number, and does not land
    put(shop, shop.landing / name)
    before = identity(shop.landing / name)
    done = shop.rotate()
    assert done.returncode == 1
    assert f"shop-0000001.bin stays: {shop.landing}/{name} has its number: move that file away" in done.stderr
    assert identity(shop.landing / name) == before
    assert not (shop.folder / "none").exists()
    assert shop.kept == [b"received"]
    (shop.landing / name).rename(shop.folder / "away")
    assert shop.rotate().returncode == 0
    assert shop.landed == {"shop-0000001.bin.gz": b"received"}


@IS_ROOT
def test_another_users_file_neither_counts_nor_passes_for_the_landed_one(shop: Shop) -> None:
    foreign = shop.landing / "shop-0000009.bin.gz"
    foreign.write_bytes(gzip.compress(b"received", mtime=0))
    os.chown(foreign, 65534, 65534)
    shop.receive(b"received")
    assert shop.rotate().returncode == 0
    assert "shop-0000001.bin.gz" in shop.landed, "the foreign number made no gap"
    (shop.state / "last").write_text("8\n")
    (shop.landing / "shop-0000001.bin.gz").unlink()
    shop.receive(b"received")
    done = shop.rotate()
    assert done.returncode == 1
    assert "has its number" in done.stderr
    assert shop.kept == [b"received"]


@pytest.mark.parametrize("put", [link, dangling, folder, plain])
def test_a_predictable_name_of_a_partial_file_does_no_harm(shop: Shop, put: Put) -> None:
    partial = shop.landing / ".shop-0000001.bin.gz.part"
    put(shop, partial)
    shop.receive(b"received")
    done = shop.rotate()
    assert shop.victim.stat().st_mode & 0o777 == 0o644
    assert not (shop.folder / "none").exists()
    if put is not folder:
        assert (done.returncode, shop.landed) == (0, {"shop-0000001.bin.gz": b"received"})
        assert not partial.is_symlink()
        assert not partial.exists()
    else:
        assert (done.returncode, shop.kept) == (1, [b"received"])


@pytest.mark.parametrize("swap", ['ln -s "$VICTIM" "$file"', 'echo other >"$file"', 'mkfifo "$file"', 'mkdir "$file"'])
def test_a_partial_file_that_is_swapped_while_it_is_written_does_not_count_as_landed(shop: Shop, swap: str) -> None:
    swapping = shop.program(
        "gzip",
        f'for file in "$LANDING"/.shop-*; do mv "$file" aside; {swap}; done\nexec {shutil.which("gzip")} "$@"',
    )
    shop.receive(b"received")
    done = shop.rotate(VICTIM=str(shop.victim))
    assert done.returncode == 1
    assert "shop-0000001.bin stays: another user replaced or created" in done.stderr
    assert shop.kept == [b"received"]
    assert gzip.decompress((shop.folder / "aside").read_bytes()) == b"received", "written where it was created"
    swapping.unlink()
    assert "has its number" in shop.rotate().stderr
    for path in shop.landing.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert shop.rotate().returncode == 0
    assert shop.landed == {"shop-0000001.bin.gz": b"received"}


STATE_FILES = ("current", "renamed", "rotated", "part", "last", "last.part", "lock", "receiver.lock", "complete")


@pytest.mark.parametrize("script", ["rotate.sh", "receive.sh"])
@pytest.mark.parametrize("name", STATE_FILES)
def test_links_in_the_state_are_refused(shop: Shop, script: str, name: str) -> None:
    path = shop.state / name
    if path.is_dir():
        path.rename(shop.folder / "elsewhere")
        path.symlink_to(shop.folder / "elsewhere")
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(shop.victim)
    done = shop.run(script)
    assert done.returncode == 1
    assert f"shop: {path}: expected a " in done.stderr
    assert path.is_symlink()


def test_a_state_that_every_user_may_write_to_is_refused(shop: Shop) -> None:
    shop.state.chmod(0o777)
    done = shop.rotate()
    assert done.returncode == 1
    assert f"every user may write to {shop.state}" in done.stderr


@pytest.mark.parametrize("put", [link, fifo, folder])
def test_only_plain_files_are_uploaded(shop: Shop, put: Put) -> None:
    upload = shop.program("upload", f'cat "$1" >>"{shop.folder}/uploaded"')
    put(shop, shop.landing / "shop-0000000.bin.gz")
    shop.receive(b"received")
    done = shop.rotate(UPLOAD=str(upload))
    assert done.returncode == 1
    assert "shop-0000000.bin.gz' stays: expected a plain file" in done.stderr
    assert gzip.decompress((shop.folder / "uploaded").read_bytes()) == b"received"


@IS_ROOT
def test_another_users_file_is_not_uploaded(shop: Shop) -> None:
    upload = shop.program("upload", f'cat "$1" >>"{shop.folder}/uploaded"')
    foreign = shop.landing / "shop-0000000.bin.gz"
    foreign.write_bytes(b"hostile")
    os.chown(foreign, 65534, 65534)
    shop.receive(b"received")
    done = shop.rotate(UPLOAD=str(upload))
    assert done.returncode == 1
    assert "shop-0000000.bin.gz is not uploaded: expected a file of this user" in done.stderr
    assert gzip.decompress((shop.folder / "uploaded").read_bytes()) == b"received"
    assert foreign.exists()


def test_a_file_that_is_replaced_during_its_upload_stays(shop: Shop) -> None:
    """The program uploads what was landed, and the replacement is not removed."""
    upload = shop.program(
        "upload",
        f'ln -sf "{shop.victim}" "$LANDING/${{1##*/}}"\ncat "$1" >"{shop.folder}/uploaded"',
    )
    shop.receive(b"received")
    done = shop.rotate(UPLOAD=str(upload))
    assert done.returncode == 1
    assert "shop-0000001.bin.gz was replaced during its upload: it stays" in done.stderr
    assert gzip.decompress((shop.folder / "uploaded").read_bytes()) == b"received"
    assert (shop.landing / "shop-0000001.bin.gz").is_symlink()


def test_nothing_is_readable_by_every_user_at_any_time(tmp_path: Path) -> None:
    """Under umask 022. A compressor and an upload record the modes while they run."""
    shop = Shop(tmp_path / "folder")
    record = f'find "{shop.state}" "{shop.landing}" -type f -printf "%m %f\\n" >>"{tmp_path}/modes"'
    shop.program("gzip", f'{record}\nexec {shutil.which("gzip")} "$@"')
    upload = shop.program("upload", f"{record}\nexit 1")
    (shop.state / "receiver.lock").unlink()
    shop.program("pg_recvlogical", 'for last; do case $last in --file=*) echo received >"${last#*=}";; esac; done')
    assert shop.run("receive.sh").returncode == 0
    assert shop.rotate(UPLOAD=str(upload)).returncode == 1
    assert stat.S_IMODE((shop.landing / "shop-0000001.bin.gz").stat().st_mode) == 0o640
    subprocess.run(["bash", "-c", record], check=True)
    modes = dict(line.split(" ", 1)[::-1] for line in (tmp_path / "modes").read_text().splitlines())
    assert {"shop-0000001.bin", "shop-0000001.bin.gz", "lock", "receiver.lock", "last", "rotated"} <= set(modes)
    assert [(name, mode) for name, mode in modes.items() if int(mode, 8) & 0o007] == []
    assert shop.state.parent.stat().st_mode & 0o777 == 0o755


def test_an_installation_keeps_the_modes_of_folders(tmp_path: Path) -> None:
    settings = tmp_path / "etc" / "pg-landing"
    settings.mkdir(parents=True, mode=0o750)
    environment = {**os.environ, "DESTDIR": str(tmp_path)}
    subprocess.run([str(CONF / "install.sh")], env=environment, check=True, capture_output=True)
    assert stat.S_IMODE(settings.stat().st_mode) == 0o750


def test_a_run_that_died_after_landing_does_not_land_again_with_another_compression(shop: Shop) -> None:
    dying = shop.program(
        "mv",
        f'{shutil.which("mv")} "$@"\nif [[ ${{@: -1}} == "$LANDING"/* ]]; then kill -9 $PPID; fi',
    )
    shop.receive(b"received")
    assert shop.rotate().returncode != 0
    dying.unlink()
    assert (shop.landed, shop.kept) == ({"shop-0000001.bin.gz": b"received"}, [b"received"])
    assert shop.rotate(COMPRESS="none").returncode == 0
    assert shop.landed == {"shop-0000001.bin.gz": b"received"}
    assert [path.name for path in shop.landing.iterdir()] == ["shop-0000001.bin.gz"]
    assert (shop.state / "last").read_text() == "1\n"


def test_numbers_go_on_from_the_last_one_whatever_landing_has(shop: Shop) -> None:
    """Whoever may rename in LANDING can give one of this user's files another number."""
    shop.receive(b"first")
    assert shop.rotate().returncode == 0
    (shop.landing / "shop-0000001.bin.gz").rename(shop.landing / "shop-0000900.bin.gz")
    shop.receive(b"second")
    assert shop.rotate().returncode == 0
    assert shop.landed == {"shop-0000900.bin.gz": b"first", "shop-0000002.bin.gz": b"second"}


def test_a_receiver_that_starts_at_once_is_no_obstacle(shop: Shop) -> None:
    """It creates another `current` when the first one is renamed."""
    shop.receive(b"first")
    shop.program("mv", f'{shutil.which("mv")} "$@"; [[ $* != *renamed ]] || echo -n second >"{shop.state}/current"')
    done = shop.rotate()
    assert (done.returncode, done.stderr) == (0, "")
    assert shop.landed == {"shop-0000001.bin.gz": b"first"}


def test_nothing_lands_where_it_ends_with_its_unit(shop: Shop) -> None:
    shop.receive(b"received")
    done = shop.rotate(HAS_PRIVATE_TMP="yes", LANDING="/var/tmp/landing")
    assert done.returncode == 1
    assert "LANDING=/var/tmp/landing: expected a folder elsewhere" in done.stderr
    assert (shop.state / "current").read_bytes() == b"received"


def test_the_watch_reports_what_was_received_and_is_never_rotated(shop: Shop) -> None:
    shop.program("psql", f"echo '{HEALTHY}'")
    shop.receive(b"received")
    os.utime(shop.state / "current", (0, 0))
    done = shop.run("watch.sh", MAX_DISK_PERCENT="100")
    assert done.returncode == 1
    assert f"'{shop.state}/current' has waited for more than 3600 seconds" in done.stderr


def metrics(shop: Shop) -> dict[str, str]:
    lines = (shop.folder / "shop.prom").read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")


def test_the_metrics_have_the_source_and_numbers_only(tmp_path: Path) -> None:
    shop = Shop(tmp_path, 'a"b\\c $(>ran)')
    shop.program("psql", f"echo '{HEALTHY}'")
    (shop.complete / f"{shop.source}-0000002.bin").write_bytes(b"12345")
    (shop.landing / f"{shop.source}-0000001.bin.gz").write_bytes(b"123")
    (shop.landing / "other-0000001.bin.gz").write_bytes(b"123")
    (shop.state / "last").write_text("1\n")
    os.utime(shop.state / "last", (7, 7))
    file, left = tmp_path / "shop.prom", tmp_path / ".shop.prom.FromAKill1"
    left.touch()
    os.utime(left, (0, 0))
    done = shop.run("watch.sh", METRICS=str(file), UPLOAD="x", MAX_DISK_PERCENT="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    names = {name: value for name, value in metrics(shop).items() if "timestamp" not in name}
    expected = {
        "slot_retained_bytes": 1,
        "slot_active": 1,
        "waiting_files": 2,
        "waiting_bytes": 8,
        "watch_exit_code": 0,
    }
    label = r'{source="a\"b\\c $(>ran)"}'
    assert names == {f"pg_landing_{name}{label}": str(value) for name, value in expected.items()}
    assert metrics(shop)[f"pg_landing_last_landed_timestamp_seconds{label}"] == "7"
    assert [path for path in tmp_path.iterdir() if path.name[0] == "."] == []

    shop.program("psql", f"echo '{HEALTHY.replace('1', CODE, 1)}'")
    assert shop.run("watch.sh", METRICS=str(file), MAX_DISK_PERCENT="100").returncode == 1
    assert metrics(shop)[f"pg_landing_watch_exit_code{label}"] == "1"
    assert not any("slot" in name for name in metrics(shop))
    assert CODE not in file.read_text()


@pytest.mark.parametrize("put", [link, dangling, plain])
def test_the_metrics_replace_a_link_and_follow_none(shop: Shop, put: Put) -> None:
    shop.program("psql", f"echo '{HEALTHY}'")
    file = shop.folder / "shop.prom"
    put(shop, file)
    done = shop.run("watch.sh", METRICS=str(file), MAX_DISK_PERCENT="100")
    assert (done.returncode, file.is_symlink()) == (0, False)
    assert metrics(shop)['pg_landing_slot_active{source="shop"}'] == "1"
    assert not (shop.folder / "none").exists()


def test_metrics_that_can_not_be_written_are_a_problem(shop: Shop) -> None:
    shop.program("psql", f"echo '{HEALTHY}'")
    for file in (shop.folder / "none" / "shop.prom", shop.folder):
        done = shop.run("watch.sh", METRICS=f"{file}", MAX_DISK_PERCENT="100")
        assert done.returncode == 1
        assert f"shop: METRICS={file}: " in done.stderr
    for file in (Path("shop.prom"), shop.folder / "shop"):
        assert f"METRICS={file}: expected an absolute path that ends with .prom" in (
            shop.run("watch.sh", METRICS=str(file)).stderr
        )


def test_the_journal_gets_problems_as_errors_and_other_readers_plain_lines(shop: Shop) -> None:
    shop.program("psql", "exit 1")
    log = shop.folder / "log"
    log.touch()
    shop.program("watch-to-log", f'exec 2>>"{log}"; exec "{CONF}/watch.sh" "$@"')
    for journal, level in ((f"{log.stat().st_dev}:{log.stat().st_ino}", "<3>"), ("1:2", ""), ("", "")):
        shop.run(str(shop.folder / "bin" / "watch-to-log"), JOURNAL_STREAM=journal)
        assert f"{level}shop: can't query the server about its slot" in log.read_text().splitlines()
        log.write_text("")
