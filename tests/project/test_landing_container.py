"""The example of a landing container is valid and complete: its image has every file that its scripts need."""

from __future__ import annotations

import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

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
    assert "rclone" in install, "upload.sh calls it"
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


RESOURCES = {
    resource["kind"]: resource for resource in yaml.safe_load_all((CONTAINER / "statefulset.yaml").read_text())
}
POD = RESOURCES["StatefulSet"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", RESOURCES)
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_the_stateful_set_is_valid_by_kubernetes_schemas(kind: str, version: str) -> None:
    kubernetes_validate.validate(RESOURCES[kind], version, strict=True)


def test_the_stateful_set_runs_the_image_as_its_user_on_a_durable_volume() -> None:
    [container] = POD["containers"]
    [user], [volume] = values("USER"), values("VOLUME")
    assert POD["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(user),
        "fsGroup": int(user),
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "command" not in container, "the image's entry point"
    assert container["args"] == SERVICE["command"]
    [health] = values("HEALTHCHECK")
    assert container["readinessProbe"]["exec"]["command"] == yaml.safe_load(health[health.index("[") :])
    assert "livenessProbe" not in container, "a restart repairs nothing that the watch reports"
    assert {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]} == {
        volume: "landing",
        "/tmp": "tmp",
    }
    assert POD["volumes"] == [{"name": "tmp", "emptyDir": {}}], "received changes are not in a temporary volume"
    spec = RESOURCES["StatefulSet"]["spec"]
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["landing"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (1, "Parallel")
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert POD["terminationGracePeriodSeconds"] == 60 * int(SERVICE["stop_grace_period"].removesuffix("m"))


def test_the_stateful_sets_settings_are_those_of_the_other_examples() -> None:
    """Except for the password, which comes from a Secret."""
    given: dict[str, Any] = RESOURCES["ConfigMap"]["data"]
    expected = {**settings((CONF / "shop.env").read_text()), **SERVICE["environment"]}
    del expected["PGPASSFILE"]
    assert given == expected
    sources = {kind: source["name"] for entry in POD["containers"][0]["envFrom"] for kind, source in entry.items()}
    assert sources == {"configMapRef": RESOURCES["ConfigMap"]["metadata"]["name"], "secretRef": "pg-landing-shop"}
    assert given["LANDING"].startswith(f"{SERVICE['command'][1]}/")
