"""The job on machines as they are: every environment gives right tables, or one line that says what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pgoutput_etl.identifiers import path_segment
from tests.support.small_archives import Messages, copydata, insert, table, transaction

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).parents[3]
NAME = "TITLE_i"  # with letters that a Turkish locale changes
ENVIRONMENT = ("HOME", "JAVA_HOME", "PATH", "SPARK_HOME", "NUMBA_CACHE_DIR", "USER")
TIMEOUT = 900

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Shop:
    """A landing folder and a target, and a clone that reads them."""

    folder: Path
    clone: Path = ROOT

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    @property
    def job(self) -> list[str | Path]:
        return [self.clone / "spark-submit.sh", "--master=local[2]", self.clone / "jobs/apply.py", *self.options]

    @property
    def installed(self) -> list[str | Path]:
        return [Path(sys.executable).with_name("pgoutput-etl"), "apply", *self.options]

    @property
    def options(self) -> list[str | Path]:
        return ["--config", self.folder / "shop.yaml"]

    def land(self, night: int, *messages: Messages) -> Path:
        path = self.landing / f"{night}.bin"
        described = transaction(night * 10 + 1, night * 100 + 1, table(name=NAME), insert(f"{night}", "a"))
        files = [described, *messages]
        path.write_bytes(copydata((message for part in files for message in part), 0x1000000 * (night + 1)))
        return path

    def apply(self, *before: str | Path, shell: str = '"$@"', **environment: str) -> Completed:
        """before: a program that runs the job. shell: a command of a shell; its "$@" is the job."""
        return run(["bash", "-c", shell, "bash", *before, *self.job], **environment)

    @property
    def table(self) -> Path:
        return self.folder / "tables" / "public" / path_segment(NAME)

    def rows(self) -> list[str]:
        """As a reader other than Spark finds them."""
        return sorted(row["id"] for row in DeltaTable(str(self.table)).to_pyarrow_table().to_pylist())

    def assert_right(self, done: Completed, nights: int = 1) -> None:
        assert done.returncode == 0, done.stderr
        assert self.rows() == [f"{night}" for night in range(nights)]
        assert all(path.name.isascii() for path in (self.table / "_delta_log").iterdir())


def run(command: list[str | Path], **environment: str) -> Completed:
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    own = {"PYSPARK_PYTHON": sys.executable, **kept, **environment}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=TIMEOUT)


def messages(stderr: str) -> list[str]:
    """Without progress, a message's further lines, Spark's log, and what delta-rs prints if it panics."""
    ours = re.sub(r"(?m)^$\n?|^thread 'tokio.*\n.*\nnote: run with `RUST_BACKTRACE.*\n", "", stderr)
    return [line for line in ours.splitlines() if not re.match(r"\[|  |\d\d:\d\d:\d\d (?:WARN|ERROR) ", line)]


def assert_one_line(done: Completed, message: str, code: int = 1) -> None:
    lines = messages(done.stderr)
    assert (done.returncode, len(lines)) == (code, 1), done.stderr
    assert message in done.stderr


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.landing.mkdir()
    shop.land(0)
    configure(shop, tmp_path / "tables")
    return shop


def configure(shop: Shop, target: Path) -> None:
    source = f"{{name: shop, landing: '{shop.landing}', snapshot: accept}}"
    text = f"source: {source}\ntarget: {{root: '{target}', readers: all}}\nspark: {{spark.ui.enabled: false}}\n"
    (shop.folder / "shop.yaml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    """Environments by locale. Those that are not installed are compiled."""
    folder = tmp_path_factory.mktemp("locales")
    environments: dict[str, dict[str, str]] = {"none": {}, "C": {"LC_ALL": "C"}, "POSIX": {"LC_ALL": "POSIX"}}
    for name in ("tr_TR", "ar_EG", "fa_IR"):
        compiler = ["localedef", "-i", name, "-f", "UTF-8", str(folder / f"{name}.utf8")]
        if shutil.which("localedef") and subprocess.run(compiler, check=False, capture_output=True).returncode == 0:
            environments[name] = {"LC_ALL": f"{name}.utf8", "LOCPATH": str(folder)}
    return environments


@pytest.mark.parametrize("way", ["spark-submit", "installed"])
@pytest.mark.parametrize("locale", ["none", "C", "POSIX", "tr_TR", "ar_EG", "fa_IR"])
def test_a_locale(locale: str, way: str, locales: Mapping[str, Mapping[str, str]], shop: Shop) -> None:
    if locale not in locales:
        pytest.skip("there is no localedef, or no source of this locale")
    for night in (1, 2):  # a new target, and an existing one
        done = run(shop.job if way == "spark-submit" else shop.installed, **locales[locale])
        shop.assert_right(done, night)
        shop.land(night)


@pytest.mark.parametrize("way", ["spark-submit", "installed"])
def test_an_empty_environment(way: str, shop: Shop) -> None:
    command = shop.job if way == "spark-submit" else shop.installed
    shop.assert_right(run(["env", "-i", *command]))


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_a_version_of_python(version: str, shop: Shop, tmp_path: Path) -> None:
    """With the pinned packages."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], check=False, capture_output=True).returncode:
        pytest.skip(f"there is no python{version}")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    lock = str(ROOT / "requirements.lock")
    subprocess.run([tmp_path / "venv/bin/pip", "install", "-q", "--use-pep517", "-r", lock], check=True)
    environment = {"PYSPARK_PYTHON": str(tmp_path / "venv/bin/python"), "SPARK_HOME": ""}
    shop.assert_right(shop.apply(**environment))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_checkout_that_can_not_be_written(shop: Shop) -> None:
    mounted = f"mount --bind {ROOT} {ROOT} && mount -o remount,bind,ro {ROOT} && touch {ROOT}/x 2>/dev/null && exit 9;"
    unshared = run(["unshare", "--mount", "sh", "-c", f'{mounted} exec "$@"', "sh", *shop.job])
    shop.assert_right(unshared)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another network")
def test_no_network(shop: Shop) -> None:
    """Packages are in Ivy's cache. A machine without even a loopback interface has no Spark."""
    shop.assert_right(shop.apply("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"))
    shop.land(1)
    assert_one_line(shop.apply("unshare", "--net"), "Spark did not start")
    shop.assert_right(shop.apply(), 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("megabytes", [1, 4])
def test_a_small_disk(megabytes: int, shop: Shop) -> None:
    """Of the target; the next run, on a larger one, finishes the work."""
    target, kept = shop.folder / "tables", shop.folder / "kept"
    target.mkdir()
    values = [insert(f"{n}", os.urandom(40_000).hex()) for n in range(1000, 1000 + 60 * megabytes)]
    shop.land(1, transaction(99, 0x9000, *values))
    script = f'mount -t tmpfs -o size={megabytes}m none {target}; "$@"; code=$?; cp -a {target} {kept}; exit $code'
    assert_one_line(run(["unshare", "--mount", "sh", "-c", script, "sh", *shop.job]), "a disk is full")
    target.rmdir()
    kept.rename(target)
    done = shop.apply()
    assert done.returncode == 0, done.stderr
    assert len(shop.rows()) == 2 + len(values)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("kilobytes", [16, 1500])
def test_a_full_temporary_folder(kilobytes: int, shop: Shop) -> None:
    temporary = shop.folder / "temporary"
    temporary.mkdir()
    script = f'mount -t tmpfs -o size={kilobytes}k none {temporary}; exec "$@"'
    unshared = ["unshare", "--mount", "sh", "-c", script, "sh", *shop.job]
    done = run(unshared, TMPDIR=str(temporary))
    if done.returncode == 0:
        shop.assert_right(done)
    else:
        assert done.returncode == 1
        assert len(messages(done.stderr)) == 1, done.stderr
    shop.assert_right(shop.apply())


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", ">/dev/full", "| true", ">/dev/null 2>/dev/full"])
def test_standard_streams(redirection: str, shop: Shop) -> None:
    done = shop.apply(shell=f'"$@" {redirection}; exit "${{PIPESTATUS[0]}}"')
    assert done.returncode == int(redirection == ">/dev/full"), done.stderr
    assert "Traceback" not in done.stderr
    shop.assert_right(shop.apply())


@pytest.mark.parametrize("way", ["spark-submit", "installed"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("stage", ["looking for new files", "writing public."])
def test_a_signal(stage: str, number: signal.Signals, way: str, shop: Shop) -> None:
    """Of a terminal that is closed, or of `kill`: to the process that was started, or to all of them."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    command = ["env", "--default-signal=INT,HUP,TERM", *(shop.job if way == "spark-submit" else shop.installed)]
    with subprocess.Popen(
        command,
        env={"PYSPARK_PYTHON": sys.executable, **kept},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        shown: list[str] = []
        while stage not in "".join(shown):
            line = process.stderr.readline()
            assert line, shown
            shown.append(line)
        if number is signal.SIGTERM:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        rest = process.stderr.read().splitlines()
        code = process.wait(TIMEOUT)
    lines = messages("\n".join(rest))
    assert len(lines) <= 1, rest
    assert code != 0 or lines == []
    shop.assert_right(shop.apply())


def test_a_landing_file_that_grows_while_it_is_read(shop: Shop) -> None:
    path = shop.landing / "0.bin"
    content = path.read_bytes()
    more = [transaction(n, 0x1000 + n, insert(f"{n}", "x" * 1000)) for n in range(1000, 3000)]
    appended = copydata((message for part in more for message in part), 0x5000000)
    command = [str(word) for word in shop.job]
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    with (
        subprocess.Popen(
            command, env={"PYSPARK_PYTHON": sys.executable, **kept}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process,
        path.open("ab", buffering=0) as landed,
    ):
        for chunk in chunks(appended, 997):
            landed.write(chunk)
            if process.poll() is None:
                time.sleep(0.01)
        assert process.stderr is not None
        error = process.stderr.read().decode()
    assert process.returncode in (0, 3), error
    assert path.read_bytes() == content + appended
    done = shop.apply()
    assert done.returncode == 0, done.stderr
    assert len(shop.rows()) == 1 + len(more)


def chunks(content: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


@pytest.mark.skipif(shutil.which("faketime") is None, reason="there is no faketime")
@pytest.mark.parametrize("times", [("+0", "-2h"), ("+3y", "+0"), ("2038-01-19 03:14:00", "1999-12-31 23:59:50")])
def test_clocks_that_are_wrong(times: tuple[str, str], shop: Shop) -> None:
    """The second night's clock is behind the first one's. Java's waits spin or hang if only some clocks are faked."""
    for night, at in enumerate(times):
        shop.land(night)
        done = shop.apply("faketime", *(["-f"] if at[0] in "+-" else []), at)
        shop.assert_right(done, night + 1)
