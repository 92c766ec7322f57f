"""The stack's layout from Debian's packages: PostgreSQL and Prometheus from the files that compose.yaml mounts,
Helios by its image's start script with compose.yaml's command, spans to a receiver instead of the collector.

Only addresses are replaced, since here all share one host; docs/deploy.md lists them under "Without containers".
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sa
from needs import program
from otlp_receiver import OtlpReceiver
from promtool import INSTRUCTION
from waiting import free_port, wait_until

from service.load.server import byte_model, catalog_csv
from tests.deploy.private_cluster import private_cluster
from tests.deploy.stack_files import ROOT, replaced, stack
from tests.e2e.helios_server import HeliosServer

pytestmark = [pytest.mark.postgresql, pytest.mark.prometheus, pytest.mark.timeout(300)]

ANSWER_TOKENS = 24
REQUESTS = 3


@dataclasses.dataclass(frozen=True)
class Layout:
    """What runs. `secrets`: the folder of deploy/make_secrets.sh."""

    helios: HeliosServer
    secrets: pathlib.Path
    prometheus: str
    reader: sa.URL
    receiver: OtlpReceiver


@contextlib.contextmanager
def running(command: list[object], log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours, ended at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            print(log.read_text(errors="replace")[-4000:])


@contextlib.contextmanager
def prometheus(folder: pathlib.Path, helios_port: int) -> Iterator[str]:
    """Prometheus with the committed folder; its address."""
    executable = program("prometheus", instruction=INSTRUCTION)
    port = free_port()
    shutil.copytree(ROOT / "deploy" / "prometheus", folder / "prometheus")
    config = folder / "prometheus" / "prometheus.yml"
    addresses = {
        "helios:8000": f"127.0.0.1:{helios_port}",
        "localhost:9090": f"127.0.0.1:{port}",
        "scrape_interval: 5s": "scrape_interval: 1s",
        "scrape_timeout: 4s": "scrape_timeout: 1s",
        "evaluation_interval: 15s": "evaluation_interval: 1s",
    }
    config.write_text(replaced(config.read_text(encoding="utf-8"), addresses))
    given = [word for word in stack()["services"]["prometheus"]["command"] if word.startswith("--enable-feature")]
    command = [executable, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", *given]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"):
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), "Prometheus", 60)
        yield f"http://127.0.0.1:{port}"


def helios_server(folder: pathlib.Path, port: int, postgres: sa.URL, secrets: pathlib.Path, otlp: str) -> HeliosServer:
    """Helios as its container starts it, on the simulated device."""
    catalog = folder / "catalog.csv"
    catalog.write_text(catalog_csv(4))
    more = f"--model {byte_model()} --device simulated --catalog {catalog} --time-scale 0.02"
    more += f" --data-dir {folder / 'data'}"
    text = " ".join(stack(options=more)["services"]["helios"]["command"])
    addresses = {
        "--port 8000": f"--port {port}",
        "--host 0.0.0.0": "--host 127.0.0.1",
        "/var/lib/helios/credentials.json": str(folder / "data" / "credentials.json"),
        "@postgres/": f"@127.0.0.1:{postgres.port}/",
        "http://otel-collector:4318": otlp,
    }
    (folder / "tmp").mkdir()
    given = stack()["services"]["helios"]["environment"]
    environment = {
        "HELIOS_DATABASE_PASSWORD_FILE": str(secrets / pathlib.PurePath(given["HELIOS_DATABASE_PASSWORD_FILE"]).name),
        "HELIOS_FIRST_CREDENTIALS_FILE": str(secrets / pathlib.PurePath(given["HELIOS_FIRST_CREDENTIALS_FILE"]).name),
        "TMPDIR": str(folder / "tmp"),
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), "sh"]
    command += [str(ROOT / "deploy" / "docker" / "entrypoint.sh"), *replaced(text, addresses).split()]
    return HeliosServer(folder / "data", command=command, port=port)


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> Iterator[Layout]:
    folder = tmp_path_factory.mktemp("layout")
    receiver = OtlpReceiver()
    with contextlib.ExitStack() as running_parts:
        running_parts.callback(receiver.close)
        secrets = folder / "secrets"
        url = running_parts.enter_context(private_cluster(secrets))
        port = free_port()
        helios = helios_server(folder, port, url, secrets, receiver.url)
        running_parts.callback(helios.end)
        address = running_parts.enter_context(prometheus(folder, port))
        helios.wait_ready()
        for number in range(REQUESTS):
            ask(helios.base, secrets, f"request {number}")
        password = (secrets / "grafana_db_password").read_text()
        reader = url.set(username="grafana", password=password, database="helios")
        yield Layout(helios, secrets, address, reader, receiver)


def key(secrets: pathlib.Path, role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {(secrets / f'helios_{role}_key').read_text()}"}


def ask(base: str, secrets: pathlib.Path, words: str) -> str:
    """A streamed answer with the first client's key, read to its end."""
    body = {"model": "byte-model", "prompt": words, "max_tokens": ANSWER_TOKENS, "stream": True}
    headers = key(secrets, "client")
    with httpx.stream(
        "POST", f"{base}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False
    ) as answer:
        answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.text.rstrip().endswith("[DONE]")
        return answer.text


def value(layout: Layout, query: str) -> float | None:
    """The query's only value now, None without any."""
    answer = httpx.get(f"{layout.prometheus}/api/v1/query", params={"query": query}, timeout=10, trust_env=False)
    found = answer.json()["data"]["result"]
    assert len(found) <= 1, found
    return float(found[0]["value"][1]) if found else None


def test_prometheus_finds_its_target_up_and_answers_with_what_was_served(layout):
    wait_until(lambda: value(layout, 'up{job="helios"}') == 1, "the target to be up", 60)
    served = 'flare_requests_total{job="helios", outcome="length"}'
    wait_until(lambda: value(layout, served) == REQUESTS, "the requests' counter", 60)
    assert value(layout, 'flare_output_tokens_total{job="helios"}') == REQUESTS * ANSWER_TOKENS
    rules = httpx.get(f"{layout.prometheus}/api/v1/rules", trust_env=False).json()["data"]["groups"]
    loaded = [rule for group in rules for rule in group["rules"]]
    assert loaded
    assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}


def test_dashboards_find_the_rows_with_the_readers_role(layout):
    engine = sa.create_engine(layout.reader, poolclass=sa.NullPool)

    def rows() -> tuple[int, int]:
        with engine.connect() as connection:
            requests = connection.exec_driver_sql(
                "SELECT count(*) FROM requests WHERE finish_reason = 'length'"
            ).scalar_one()
            tokens = connection.exec_driver_sql(
                "SELECT coalesce(sum(output_tokens), 0) FROM plans WHERE outcome = 'completed'"
            ).scalar_one()
            return int(requests), int(tokens)

    wait_until(lambda: rows() == (REQUESTS, REQUESTS * ANSWER_TOKENS), "the rows of all requests and plans", 60)


def test_spans_of_requests_and_plans_arrive(layout):
    def arrived() -> bool:
        names = [span.name for span in layout.receiver.spans]
        return sum("byte-model" in name for name in names) == REQUESTS and "helios.plan" in names

    layout.receiver.wait_for(arrived, "a span for each request, and plans")


def test_it_asks_everyone_for_a_key_but_the_probes(layout):
    def status(path: str, headers: dict[str, str]) -> int:
        return httpx.get(f"{layout.helios.base}{path}", headers=headers, trust_env=False).status_code

    client, operator = (key(layout.secrets, role) for role in ("client", "operator"))
    assert [status(path, {}) for path in ("/metrics", "/health/ready")] == [200, 200]
    assert [status(path, {}) for path in ("/v1/models", "/api/policy", "/dashboard/")] == [401] * 3
    assert [status(path, client) for path in ("/v1/models", "/api/policy", "/dashboard/")] == [200, 403, 403]
    assert [status(path, operator) for path in ("/v1/models", "/api/policy", "/dashboard/")] == [403, 200, 200]


def test_the_password_is_in_no_command_line_and_no_setting(layout):
    password = layout.reader.password
    secrets = {path.read_text() for path in layout.secrets.iterdir() if path.name != "helios_credentials"}
    assert password in secrets
    written = [path for path in layout.helios.data_dir.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    assert written
    for secret in secrets:
        assert not [path for path in written if secret.encode() in path.read_bytes()]
        assert secret not in layout.helios.log()
    words = pathlib.Path(f"/proc/{layout.helios.process.pid}/cmdline").read_bytes()
    assert not [secret for secret in secrets if secret.encode() in words]
