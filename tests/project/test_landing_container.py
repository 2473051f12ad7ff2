"""The example of a landing container is valid and complete: its image has every file that its scripts need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from tests.support.s3_lake import BUCKET, KEY, SECRET, lake
from tests.support.servers.landing_machine import CONF, settings

CONTAINER = CONF / "container"
INSTALLED = "/usr/local/lib/pg-landing"
COMPOSE = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
[(SOURCE, SERVICE)] = COMPOSE["services"].items()


# The keys of the Compose Specification that the example uses.
KNOWN = {
    *("build", "command", "env_file", "environment", "secrets", "volumes", "tmpfs", "read_only", "cap_drop"),
    *("ulimits", "security_opt", "init", "restart", "stop_grace_period", "healthcheck"),
}


def dockerfile() -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=BytesIO((CONTAINER / "Dockerfile").read_bytes()))
    lines = [(line["instruction"], line["value"]) for line in parser.structure]
    return [line for line in lines if line[0] != "COMMENT"]


def values(instruction: str) -> list[str]:
    return [value for name, value in dockerfile() if name == instruction]


def copied() -> dict[str, str]:
    """The files in the image's folder of scripts, by name, with their mode."""
    files: dict[str, str] = {}
    for value in values("COPY"):
        mode, *names, folder = value.split()
        assert folder == f"{INSTALLED}/"
        files |= dict.fromkeys(names, mode)
    return files


def test_the_image_has_every_script_with_all_that_it_calls() -> None:
    files = copied()
    assert [name for name in files if not (CONF / name).is_file()] == []
    assert all(files[name].endswith("=755") for name in files if name.endswith(".sh"))
    for name in files:
        text = (CONF / name).read_text()
        called = re.findall(r"\b([a-z-]+\.(?:sh|sql))\b", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))
        called = [other for other in called if not name.endswith(".sql") and (CONF / other).exists()]
        assert [other for other in called if other not in files] == [], name


def test_the_image_runs_the_scripts_as_an_ordinary_user() -> None:
    assert values("FROM") == ["${POSTGRES_IMAGE}"]
    assert re.fullmatch(r"POSTGRES_IMAGE=postgres:\d+", values("ARG")[0])
    [user], [volume], [entry] = values("USER"), values("VOLUME"), values("ENTRYPOINT")
    assert int(user) > 0
    [run] = [value for value in values("RUN") if "useradd" in value]
    assert f"--uid {user} " in run
    assert f"install -d -m 750 -o pg-landing -g pg-landing {volume}" in run
    assert values("STOPSIGNAL") == ["SIGTERM"], "the base image has SIGINT"
    [program] = yaml.safe_load(entry)
    assert Path(program).name in copied()
    [command] = values("CMD")
    assert yaml.safe_load(command) == [SOURCE, f"{volume}/{SOURCE}"] == SERVICE["command"]
    [health] = values("HEALTHCHECK")
    probe = yaml.safe_load(health[health.index("[") :])
    assert probe == [f"{INSTALLED}/watch.sh", *SERVICE["command"]]


def test_the_programs_of_the_settings_are_in_the_image() -> None:
    [install] = [value for value in values("RUN") if "apt-get install" in value]
    environment = {**settings((CONF / "shop.env").read_text()), **SERVICE["environment"]}
    assert environment["COMPRESS"] in install
    assert "awscli" in install
    assert Path(environment["UPLOAD"]).name in copied()


def test_the_compose_file_names_existing_files_and_declared_volumes() -> None:
    assert set(COMPOSE) == {"services", "volumes", "secrets"}
    assert set(SERVICE) <= KNOWN
    assert set(SERVICE["build"]) == {"context", "dockerfile"}
    assert set(SERVICE["healthcheck"]) == {"test"}
    context = CONTAINER / SERVICE["build"]["context"]
    assert (context / SERVICE["build"]["dockerfile"]).resolve() == CONTAINER / "Dockerfile"
    assert [name for name in SERVICE["env_file"] if not (CONTAINER / name).is_file()] == []
    [(volume, target)] = [entry.split(":") for entry in SERVICE["volumes"]]
    assert volume in COMPOSE["volumes"]
    assert target == values("VOLUME")[0]
    assert set(SERVICE["secrets"]) == set(COMPOSE["secrets"])
    assert SERVICE["environment"]["PGPASSFILE"] == f"/run/secrets/{SERVICE['secrets'][0]}"
    assert SERVICE["read_only"], "the scripts write to the volume and /tmp only"
    assert SERVICE["cap_drop"] == ["ALL"]
    assert SERVICE["security_opt"] == ["no-new-privileges:true"]
    assert SERVICE["ulimits"] == {"core": 0}, "a core dump has values"
    environment = settings((CONF / "shop.env").read_text())
    assert environment["LANDING"].startswith(f"{target}/")


@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker is not installed")
def test_docker_accepts_the_compose_file() -> None:
    if subprocess.run(["docker", "compose", "version"], check=False, capture_output=True).returncode != 0:
        pytest.skip("Docker Compose is not installed")
    done = subprocess.run(
        ["docker", "compose", "config", "--quiet"], cwd=CONTAINER, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("aws") is None, reason="the AWS CLI is not installed")
def test_a_landed_file_is_uploaded_to_s3(tmp_path: Path) -> None:
    file = tmp_path / "shop-0000001.bin.gz"
    file.write_bytes(b"changes")
    with lake(tmp_path) as store:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "AWS_ENDPOINT_URL": store.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "UPLOAD_TO": f"s3://{BUCKET}/landing/shop",
        }

        def upload(path: Path) -> int:
            command = [str(CONF / "upload-s3.sh"), str(path)]
            return subprocess.run(command, env=environment, check=False, capture_output=True, timeout=60).returncode

        assert upload(file) == 0
        assert upload(file) == 0, "it may be called again"
        assert [*store.objects("landing/shop")] == ["landing/shop/shop-0000001.bin.gz"]
        assert upload(tmp_path / "none") != 0
