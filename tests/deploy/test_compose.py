"""compose.yaml by Docker Compose's own reading, schema included, and by what Helios promises of it.

No container engine is needed; so this says nothing about whether images can be fetched.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import re
import subprocess
import tomllib

import pytest
import yaml

from service.cli.serve import serve
from service.credentials.caller import Caller, Role
from service.credentials.key_ring import KeyRing
from tests.deploy.stack_files import ROOT, compose, stack

SERVICES = ("grafana", "helios", "otel-collector", "postgres", "prometheus", "tempo")
EXACT_TAG = re.compile(r"[a-z0-9][a-z0-9./-]*:v?\d+(\.\d+){1,2}(-[a-z0-9.]+)*(@sha256:[0-9a-f]{64})?")
KEYS = {"helios_operator_key", "helios_client_key"}
"""For people; no container gets them."""
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|KEY|CREDENTIAL")


@pytest.fixture(params=SERVICES)
def service(request) -> dict:
    return stack()["services"][request.param]


@pytest.mark.parametrize("over", [(), ("compose.cuda.yaml",)], ids=["cpu", "cuda"])
def test_compose_reads_it_without_a_warning(over):
    assert tuple(sorted(stack(*over)["services"])) == SERVICES


@pytest.mark.parametrize(
    "wrong",
    [
        {"helthcheck": {"test": ["CMD", "true"]}},
        {"ports": [{"published": {}}]},
        {"restart": 3},
        {"healthcheck": {"retries": "often"}},
        {"depends_on": {"nobody": {"condition": "service_healthy"}}},
        {"volumes": ["nowhere:/data"]},
        {"secrets": ["untold"]},
    ],
)
def test_compose_notices_a_mistake(tmp_path, wrong):
    document = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    document["services"]["tempo"].update(wrong)
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(document))
    assert compose(tmp_path / "compose.yaml").returncode != 0


def test_every_image_is_pinned(service):
    bases = [value for name, value in service.get("build", {}).get("args", {}).items() if name == "BASE"]
    for image in [service["image"], *bases]:
        assert EXACT_TAG.fullmatch(image), image
    assert ("build" in service) == service["image"].startswith("helios")
    assert service.get("pull_policy") == ("build" if "build" in service else None)


def test_an_image_of_our_own_carries_the_version_of_what_is_in_it():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    services = stack()["services"]
    assert services["helios"]["image"] == f"helios:{version}"
    for name in ("otel-collector", "tempo"):
        base = services[name]["build"]["args"]["BASE"]
        assert services[name]["image"].rpartition(":")[2] == base.rpartition(":")[2]


def test_it_runs_with_as_little_as_it_needs(service):
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert not {"cap_add", "privileged", "devices", "pid", "ipc"} & set(service)
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])


def test_it_is_bounded_restarted_and_stopped_in_order(service):
    limits = service["deploy"]["resources"]["limits"]
    assert int(limits["memory"]) >= 256 << 20
    assert limits["pids"] > 0
    assert service["restart"] == "unless-stopped"
    assert re.fullmatch(r"(\d+m)?\d+s", service["stop_grace_period"])
    assert service["logging"]["options"]["max-size"]


def test_it_says_whether_it_is_healthy(service):
    if service["image"].startswith("helios:"):
        assert "healthcheck" not in service  # the image has one, see test_image
        return
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    addresses = re.findall(r"http://([^:/]+)", " ".join(check["test"]))
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses)


def test_whoever_waits_waits_for_health(service):
    waits = service.get("depends_on", {})
    assert all(how["condition"] == "service_healthy" for how in waits.values())
    assert "network_mode" not in service


def test_ports_are_published_on_loopback_only(service):
    ports = service.get("ports", [])
    assert all(ipaddress.ip_address(port["host_ip"]).is_loopback for port in ports)
    assert bool(ports) == ("published" in service.get("networks", {}))
    assert stack()["networks"]["inside"]["internal"] is True


def test_no_secret_is_written_down(service):
    given = {secret["target"] for secret in service.get("secrets", [])}
    for name, value in service.get("environment", {}).items():
        if SECRET_NAME.search(name):
            assert name.endswith("_FILE")
            assert value in given
    words = " ".join(service.get("command") or [])
    assert not re.search(r"://[^/\s]*:[^/\s]*@|password", words, re.IGNORECASE)


def test_secrets_are_files_that_git_and_the_image_builder_ignore_and_the_script_makes(tmp_path):
    files = [pathlib.Path(entry["file"]) for entry in stack()["secrets"].values()]
    assert {file.parent for file in files} == {ROOT / "deploy" / "secrets"}
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in kept
    assert not [line for line in kept if line.startswith("!") and "deploy/secrets".startswith(line[1:])]
    subprocess.run(["sh", ROOT / "deploy" / "make_secrets.sh", tmp_path / "made"], check=True, capture_output=True)
    assert {path.name for path in (tmp_path / "made").iterdir()} == {file.name for file in files} | KEYS


def test_secrets_are_random_closed_to_others_and_never_made_twice(tmp_path):
    folder = tmp_path / "secrets"
    command = ["sh", str(ROOT / "deploy" / "make_secrets.sh"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}
    assert len(set(before.values())) == len(before)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for name, value in before.items() if not name.startswith("helios_"))
    (folder / "postgres_password").unlink()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = {path.name: path.read_text() for path in folder.iterdir()}
    assert after.pop("postgres_password") != before.pop("postgres_password")
    assert after == before
    assert said.count("kept") == len(before) - len(KEYS)


def test_the_first_keys_open_helios_which_gets_their_hashes_alone(tmp_path):
    folder = tmp_path / "secrets"
    subprocess.run(["sh", str(ROOT / "deploy" / "make_secrets.sh"), str(folder)], check=True, capture_output=True)
    mounted = folder / "helios_credentials"
    keys = {role: (folder / f"helios_{role}_key").read_text() for role in ("operator", "client")}
    assert not [key for key in keys.values() if key.rpartition("_")[2] in mounted.read_text()]
    mounted.chmod(0o600)
    ring = KeyRing(mounted)
    for role, key in keys.items():
        assert ring.holder(key).caller == Caller(f"first-{role}", Role(role))


def test_the_first_start_lays_the_credentials_where_they_can_be_changed_and_later_ones_keep_them(tmp_path):
    first, target, found = tmp_path / "first", tmp_path / "data" / "credentials.json", tmp_path / "bin" / "helios"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    first.write_text("one")
    first.chmod(0o444)
    environment = {"PATH": f"{found.parent}:{os.environ['PATH']}", "HELIOS_FIRST_CREDENTIALS_FILE": str(first)}
    command = ["sh", str(ROOT / "deploy" / "docker" / "entrypoint.sh"), "serve", "--credentials-file", str(target)]
    subprocess.run(command, check=True, env=environment)
    assert target.read_text() == "one"
    assert target.stat().st_mode & 0o777 == 0o600
    target.write_text("two")
    subprocess.run(command, check=True, env=environment)
    assert target.read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_every_mounted_file_is_in_the_repository_and_read_only(service):
    for mount in service.get("volumes", []):
        assert mount.get("read_only", False) == (mount["type"] == "bind")
        if mount["type"] == "bind":
            assert pathlib.Path(mount["source"]).is_relative_to(ROOT / "deploy")
            assert pathlib.Path(mount["source"]).exists(), mount["source"]


def test_grafana_opens_with_a_dashboard_that_is_mounted():
    grafana = stack()["services"]["grafana"]
    home = pathlib.PurePath(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    mounted = {mount["target"]: mount["source"] for mount in grafana["volumes"]}
    assert (pathlib.Path(mounted[str(home.parent)]) / home.name).exists()


def test_every_volume_network_and_secret_is_used():
    services = stack()["services"].values()
    mounts = [mount for service in services for mount in service.get("volumes", [])]
    assert set(stack()["volumes"]) == {mount["source"] for mount in mounts if mount["type"] == "volume"}
    assert set(stack()["networks"]) == {name for service in services for name in service.get("networks", {})}
    assert set(stack()["secrets"]) == {entry["source"] for service in services for entry in service.get("secrets", [])}


@pytest.mark.parametrize("over", [(), ("compose.cuda.yaml",)], ids=["cpu", "cuda"])
def test_helios_takes_the_options_that_it_is_given(over):
    words = stack(*over, options="--draft-tokens 3 --model '/models/a b'")["services"]["helios"]["command"]
    assert words[0] == "serve"
    given = serve.make_context("serve", words[1:]).params
    assert (given["host"], given["port"], given["draft_tokens"]) == ("0.0.0.0", 8000, 3)
    assert given["model"] == "/models/a b"
    assert given["credentials_file"].is_relative_to("/var/lib/helios")
    assert given["database"] == "postgresql://helios@postgres/helios"
    assert given["otlp_endpoint"] == "http://otel-collector:4318"
    assert given["device"] == ("cuda" if over else None)


def test_the_gpus_file_changes_only_what_a_gpu_needs():
    plain, gpu = stack(), stack("compose.cuda.yaml")
    words = gpu["services"]["helios"]["command"]
    at = words.index("--device")
    assert words[:at] + words[at + 2 :] == plain["services"]["helios"]["command"]
    reserved = gpu["services"]["helios"]["deploy"]["resources"]["reservations"]["devices"]
    assert [entry["driver"] for entry in reserved] == ["nvidia"]
    assert {name: entry for name, entry in gpu["services"].items() if name != "helios"} == {
        name: entry for name, entry in plain["services"].items() if name != "helios"
    }


def test_what_an_operator_may_set_and_what_holds_data_is_in_the_page():
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("compose.yaml", "compose.cuda.yaml"))
    variables = set(re.findall(r"\$\{(\w+)", text))
    assert len(variables) > 5
    assert not [name for name in variables if not re.search(rf"\b{name}\b", page)]
    assert not [volume for volume in stack()["volumes"] if f"| {volume} |" not in page]
    commands = re.findall(r"^(sh deploy/make_secrets\.sh|docker compose up --detach --wait)", page, flags=re.MULTILINE)
    assert commands == ["sh deploy/make_secrets.sh", "docker compose up --detach --wait"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"\n{command}" in readme for command in commands)
