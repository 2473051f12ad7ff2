"""Packs the package and its dependencies except Spark into an archive, for clusters whose machines have only Python.

    make archive                                     # build/pgoutput_etl-VERSION-cp311-linux_x86_64.tar.gz
    .venv/bin/python tools/pack.py /tmp/etl.tar.gz

What is packed is what the Python that runs this has installed, at these versions, and this package as a wheel. The
archive holds for machines of the same system, architecture and minor version of Python. Unpacked anywhere, its
`bin/python` is a Python that finds all of it, which is what `spark.pyspark.python` wants to be given.
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
OF_SPARK = {"pyspark", "py4j"}  # the cluster's own are the ones to be used
LAUNCHER = """#!/bin/sh
# The machine's Python {version}, or the one that PGOUTPUT_ETL_PYTHON names, with all that is packed here.
here=$(cd "$(dirname "$0")/.." && pwd)
python=${{PGOUTPUT_ETL_PYTHON:-python{version}}}
command -v "$python" >/dev/null || {{
  echo "pgoutput_etl: there is no $python on $(hostname): set PGOUTPUT_ETL_PYTHON to a Python {version}" >&2
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


def requirements(of: Distribution) -> Iterator[str]:
    """Names, without what an extra alone needs."""
    for line in of.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def needed() -> dict[str, Distribution]:
    """What the package needs, and what that needs in turn; neither itself nor Spark's."""
    found: dict[str, Distribution] = {}
    names = [*requirements(distribution(NAME))]
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in found and name not in OF_SPARK:
            found[name] = distribution(name)
            names += requirements(found[name])
    return dict(sorted(found.items()))


def files_of(installed: Distribution) -> Iterator[tuple[str, Path]]:
    """Each file's name below `lib`, and where it is; without commands, and what Python makes itself."""
    for file in installed.files or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            yield file.as_posix(), Path(str(file.locate()))


def built_wheel(folder: Path) -> Path:
    """From a copy, as setuptools leaves its own files beside the source, and would pack what it left there."""
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
        with ZipFile(built_wheel(Path(folder))) as wheel:
            wheel.extractall(Path(folder) / "lib")
        packed.add(Path(folder) / "lib", "lib")
        for installed in needed().values():
            for name, path in files_of(installed):
                packed.add(path, f"lib/{name}", recursive=False)


if __name__ == "__main__":
    archive = Path(sys.argv[1]) if len(sys.argv) > 1 else default_archive()
    pack(archive)
    sys.stdout.write(f"{archive}: {archive.stat().st_size:,} bytes, with {', '.join(needed())}\n")
