"""spark-submit.sh: chooses the driver's Python and runs a job with it, or submits the job to a cluster that runs it.

In client mode, the job's Python starts the JVM itself, as `pgoutput-etl JOB` does: standard output, signals, and exit
codes are its own. Runs with any Python, and only imports the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]

USAGE = """\
Runs one of the jobs with Spark, Delta Lake, and this package.

  ./spark-submit.sh [Spark's options] JOB [the job's arguments]
  ./spark-submit.sh jobs/apply.py --config conf/local.yaml --master 'local[4]' --driver-memory 4g

The job's options may stand before JOB, too, and Spark's options that take a value after it; arguments after `--` belong
to the job. Uses the Spark in SPARK_HOME, else in ./.venv, else of python3. Exits with the job's exit code.
"""

# Spark's options without a value
_FLAGS = ("-h", "--help", "-v", "--verbose", "--supervise")

_EXIT_USAGE = 2  # as in exit_codes.py

# Java's digits in file names; spark/jvm.py does this for a JVM that it starts.
_LANGUAGE = {"spark.driver.defaultJavaOptions": "-Duser.language=en -Duser.country=US"}


def main(arguments: Sequence[str]) -> int:
    """Doesn't return if the job runs here."""
    if sys.version_info < (3, 10):  # noqa: UP036 # the machine's own Python may be older
        return _refuse(f"Python 3.10 or newer is required, and {sys.executable} is {sys.version.split()[0]}")
    from pgoutput_etl.spark.options import keep, settings_of, split, submitted

    if any(sign in str(ROOT) for sign in ':"'):
        return _refuse(f"Python and Java can't read a path with ':' or '\"': move the folder {ROOT}")
    try:
        options, others = split(arguments)
    except ValueError as error:
        return _refuse(str(error))
    flags, job = _job(others)
    if {"-h", "--help"} & set(flags):
        sys.stdout.write(USAGE)
        return 0
    if not job:
        return _refuse(f"expected a job; usage: {USAGE.splitlines()[2].strip()}")
    keep([*flags, *options])
    python = _python(settings_of(options))
    if not os.environ.get("SPARK_HOME", "-"):
        del os.environ["SPARK_HOME"]  # pyspark would take an empty one for a folder
    home = os.environ.get("SPARK_HOME")
    if submitted(home).get("spark.submit.deployMode") == "cluster":
        return _submit(home or _home_of(python), [*flags, *options], job)
    return _run(python, home, job)


def _job(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Spark's flags, and the job with its arguments, some of which may precede it: the first Python file is the job."""
    scripts = [n for n, word in enumerate(words) if word.endswith(".py")]
    others = [n for n, word in enumerate(words) if not word.startswith("-")]
    found = [n for n in scripts if "://" in words[n] or Path(words[n]).is_file()]
    at = next(iter(found or scripts or others), None)
    if at is None:
        return list(words), []
    own = [word for word in words[:at] if word not in _FLAGS]
    return [word for word in words[:at] if word in _FLAGS], [words[at], *own, *words[at + 1 :]]


def _refuse(reason: str) -> int:
    sys.stderr.write(f"spark-submit.sh: {reason}\n")
    return _EXIT_USAGE


def _python(settings: Mapping[str, str]) -> str:
    """The driver's Python, in Spark's order of precedence."""
    chosen = (
        *map(settings.get, ("spark.pyspark.driver.python", "spark.pyspark.python")),
        *map(os.environ.get, ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")),
    )
    return next(filter(None, chosen), sys.executable)


def _home_of(python: str) -> str | None:
    """The Spark that is installed for a Python."""
    code = "from importlib.util import find_spec as f; print(f('pyspark').submodule_search_locations[0])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _run(python: str, home: str | None, job: Sequence[str]) -> int:
    if not Path(job[0]).is_file():
        return _refuse(f"no such job: {job[0]}")
    folders = [str(ROOT)]
    if home and Path(home, "python", "pyspark").is_dir():  # it has its own pyspark
        folders += [str(Path(home, "python")), *map(str, Path(home, "python", "lib").glob("py4j-*.zip"))]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))
    os.environ["PGOUTPUT_ETL_RESTARTED"] = "1"  # don't restart with another Python: see launcher.py
    try:
        os.execvp(python, [python, *job])
    except OSError as error:
        return _refuse(f"{python}: {error.strerror}")


def _submit(home: str | None, options: Sequence[str], job: Sequence[str]) -> int:
    """Submits to a cluster, which runs the driver, and returns spark-submit's exit code."""
    from pgoutput_etl.errors import ConfigError
    from pgoutput_etl.spark.options import EXCLUDES, MODULES, PACKAGES, joined, submitted
    from pgoutput_etl.spark.packages import with_delta, write_modules

    if home is None:
        return _refuse("no Spark: set SPARK_HOME, or run make demo once")
    try:
        settings = with_delta({**_LANGUAGE, **submitted(home)}, home)
    except ConfigError as error:
        return _refuse(str(error))
    with TemporaryDirectory(prefix="pgoutput-etl.") as folder:
        modules = joined(str(write_modules(Path(folder))), settings.get(MODULES, ""))
        own = ["--conf", *(f"{key}={settings[key]}" for key in _LANGUAGE), "--py-files", modules]
        for option, key in (("--packages", PACKAGES), ("--exclude-packages", EXCLUDES)):
            own += [option, settings[key]] if settings.get(key) else []
        return subprocess.call([str(Path(home, "bin", "spark-submit")), *options, *own, *job])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
