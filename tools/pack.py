"""Packs the package and its dependencies, except Spark, into an archive for clusters whose machines have only Python.

    make archive                                     # build/pgoutput_etl-VERSION-cp311-linux_x86_64.tar.gz
    .venv/bin/python tools/pack.py /tmp/etl.tar.gz

The archive has the versions that the running Python has installed, and this package as a wheel. It works on machines
with the same system, architecture, and minor version of Python. Unpack it anywhere: its `bin/python`, the value for
`spark.pyspark.python`, finds all of it.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, version
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NAME = "pgoutput_etl"
# A cluster has its own Spark. Only jobs/status.py needs delta-rs, which would double the archive, and it needs no
# cluster.
LEFT_OUT = {"pyspark", "py4j", "deltalake", "arro3-core"}
LAUNCHER = """#!/bin/sh
# Runs the machine's Python {version}, or the one in PGOUTPUT_ETL_PYTHON, with the packed libraries.
here=$(cd "$(dirname "$0")/.." && pwd)
python=${{PGOUTPUT_ETL_PYTHON:-python{version}}}
command -v "$python" >/dev/null || {{
  echo "pgoutput_etl: $python not found on $(hostname): set PGOUTPUT_ETL_PYTHON to a Python {version}" >&2
  exit 1
}}
export PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
exec "$python" "$@"
"""


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def default_archive() -> Path:
    platform = sysconfig.get_platform().replace("-", "_")
    tag = f"cp{python_version().replace('.', '')}-{platform}"
    return ROOT / "build" / f"{NAME}-{version(NAME)}-{tag}.tar.gz"


def requirements(package: Distribution) -> Iterator[str]:
    """Names of the required packages, without those that only an extra requires."""
    for line in package.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def dependencies() -> dict[str, Distribution]:
    """The package's direct and indirect dependencies except Spark's packages, plus psycopg, with which tasks read a
    server, and Delta's Python package, for a driver on the cluster."""
    packages: dict[str, Distribution] = {}
    names = [*requirements(distribution(NAME)), "psycopg", "psycopg-binary", "delta-spark"]
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in packages and name not in LEFT_OUT:
            packages[name] = distribution(name)
            names += requirements(packages[name])
    return dict(sorted(packages.items()))


def package_files(package: Distribution) -> Iterator[tuple[str, Path]]:
    """Each file's name below `lib` and its path, without commands and compiled Python."""
    for file in package.files or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            yield file.as_posix(), Path(str(file.locate()))


def build_wheel(folder: Path) -> Path:
    """Builds from a copy: setuptools leaves files next to the source, and would pack those of an earlier build."""
    source = folder / "source"
    shutil.copytree(ROOT / NAME, source / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(source)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def pack(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        launcher = LAUNCHER.format(version=python_version()).encode()
        entry = tarfile.TarInfo("bin/python")
        entry.mode, entry.size = 0o755, len(launcher)
        packed.addfile(entry, io.BytesIO(launcher))
        with ZipFile(build_wheel(Path(folder))) as wheel:
            wheel.extractall(Path(folder) / "lib")
        packed.add(Path(folder) / "lib", "lib")
        for package in dependencies().values():
            for name, path in package_files(package):
                packed.add(path, f"lib/{name}", recursive=False)


if __name__ == "__main__":
    archive = Path(sys.argv[1]) if len(sys.argv) > 1 else default_archive()
    pack(archive)
    sys.stdout.write(f"{archive}: {archive.stat().st_size:,} bytes, with {', '.join(dependencies())}\n")
