"""Each file that compose.yaml mounts, by the program that reads it where Debian has it, else by its documented keys."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
import yaml
from needs import program
from promtool import INSTRUCTION

from service.store.database import upgrade
from service.store.tables import metadata
from tests.deploy.private_cluster import INIT, private_cluster, run_init
from tests.deploy.stack_files import ROOT, stack

DEPLOY = ROOT / "deploy"
WRITABLE = "SET transaction_read_only = off"


def read(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


@pytest.mark.prometheus
def test_prometheus_accepts_its_configuration_and_rules():
    tool = program("promtool", instruction=INSTRUCTION)
    done = subprocess.run(
        [tool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


COLLECTOR = {  # by the collector's own documentation of each component
    "receivers": {"otlp": {"protocols": {"http": {"endpoint": str}}}},
    "processors": {"memory_limiter": {"check_interval": str, "limit_percentage": int, "spike_limit_percentage": int}},
    "exporters": {
        "otlp_grpc/tempo": {
            "endpoint": str,
            "tls": {"insecure": bool},
            "timeout": str,
            "sending_queue": {"enabled": bool},
            "retry_on_failure": {"enabled": bool},
        }
    },
    "extensions": {"health_check": {"endpoint": str}},
    "service": {
        "extensions": list,
        "pipelines": {"traces": {"receivers": list, "processors": list, "exporters": list}},
        "telemetry": {"metrics": {"level": str, "readers": list}},
    },
}
TEMPO = {
    "server": {"http_listen_port": int},
    "distributor": {"receivers": {"otlp": {"protocols": {"grpc": {"endpoint": str}}}}},
    "ingester": {"max_block_duration": str},
    "compactor": {"compaction": {"block_retention": str}},
    "storage": {"trace": {"backend": str, "wal": {"path": str}, "local": {"path": str}}},
    "overrides": {
        "defaults": {"ingestion": {"max_traces_per_user": int, "rate_limit_bytes": int, "burst_size_bytes": int}}
    },
    "usage_report": {"reporting_enabled": bool},
}


def shape(value: object) -> object:
    """The keys of a document with the types of their values."""
    return {key: shape(part) for key, part in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.parametrize(
    ("name", "documented"), [("otel-collector/config.yaml", COLLECTOR), ("tempo/tempo.yaml", TEMPO)]
)
def test_keys_are_those_that_the_program_documents(name, documented):
    assert shape(read(name)) == documented


def test_the_collector_passes_on_what_it_takes_and_keeps_nothing():
    """A span that was answered for and is lost would be lost unnoticed: Helios' journal is the only queue."""
    config = read("otel-collector/config.yaml")
    pipeline = config["service"]["pipelines"]["traces"]
    assert set(pipeline["receivers"]) == set(config["receivers"])
    assert set(pipeline["exporters"]) == set(config["exporters"])
    assert pipeline["processors"] == ["memory_limiter"] == list(config["processors"])
    exporter = config["exporters"]["otlp_grpc/tempo"]
    assert exporter["sending_queue"] == exporter["retry_on_failure"] == {"enabled": False}


def test_every_address_in_a_file_is_one_that_a_service_listens_on():
    words = stack()["services"]["helios"]["command"]
    collector, tempo = read("otel-collector/config.yaml"), read("tempo/tempo.yaml")
    reader = collector["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    listening = {
        f"helios:{words[words.index('--port') + 1]}",
        "otel-collector:" + collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].split(":")[1],
        f"otel-collector:{reader['port']}",
        "tempo:" + tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].split(":")[1],
        f"tempo:{tempo['server']['http_listen_port']}",
        "localhost:9090",
    }
    jobs = read("prometheus/prometheus.yml")["scrape_configs"]
    asked = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}
    asked |= {collector["exporters"]["otlp_grpc/tempo"]["endpoint"]}
    asked |= {words[words.index("--otlp-endpoint") + 1].removeprefix("http://")}
    asked |= {f"helios:{port['target']}" for port in stack()["services"]["helios"]["ports"]}
    assert asked <= listening
    assert {job["job_name"] for job in jobs} == {"helios", "otel-collector", "tempo", "prometheus"}


def test_data_sources_reach_the_services_with_the_readers_password():
    folder = DEPLOY / "grafana" / "provisioning" / "datasources"
    sources = [source for file in folder.glob("*.y*ml") for source in yaml.safe_load(file.read_text())["datasources"]]
    by_uid = {source["uid"]: source for source in sources}
    assert set(by_uid) == {"helios-prometheus", "helios-postgres", "helios-tempo"}
    assert by_uid["helios-prometheus"]["url"] == "http://prometheus:9090"
    assert by_uid["helios-tempo"]["url"] == "http://tempo:3200"
    postgres = by_uid["helios-postgres"]
    assert postgres["url"] == "postgres:5432"
    assert postgres["user"] == "grafana"
    assert postgres["secureJsonData"]["password"] == "$__file{/run/secrets/grafana_db_password}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[tuple[sa.URL, dict[str, str]]]:
    """The address of a private cluster as the stack makes it, and the passwords by the names of their files."""
    secrets = tmp_path_factory.mktemp("secrets")
    with private_cluster(secrets) as url:
        yield url, {path.name: path.read_text() for path in secrets.iterdir()}


def connected(url: sa.URL, role: str, password: str | None) -> sa.Engine:
    return sa.create_engine(url.set(username=role, password=password, database="helios"), poolclass=sa.NullPool)


@pytest.mark.postgresql
def test_helios_makes_its_tables_with_the_password_in_libpqs_file(cluster, tmp_path, monkeypatch):
    url, passwords = cluster
    address = url.set(username="helios", database="helios").render_as_string()
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:*:{passwords['helios_db_password']}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert upgrade(address).state == "current"
    file.write_text("*:*:*:*:wrong\n")
    with pytest.raises(Exception, match="password"):
        upgrade(address)


@pytest.mark.postgresql
def test_dashboards_read_every_table_and_write_none(cluster):
    url, passwords = cluster
    upgrade(connected(url, "helios", passwords["helios_db_password"]).url.render_as_string(hide_password=False))
    engine = connected(url, "grafana", passwords["grafana_db_password"])
    with engine.connect() as connection:
        for name in [*metadata.tables, "plan_timeline"]:
            connection.exec_driver_sql(f"SELECT * FROM {name} LIMIT 1")
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "30s"
    refused = pytest.raises(sa.exc.DBAPIError, match=r"read-only|permission denied")
    for statement in ("DELETE FROM plans", "CREATE TABLE other (a int)", f"{WRITABLE}; DELETE FROM plans"):
        with engine.connect() as connection, refused:
            connection.exec_driver_sql(statement)


@pytest.mark.postgresql
@pytest.mark.parametrize("role", ["helios", "grafana"])
@pytest.mark.parametrize("password", [None, "wrong"])
def test_nobody_enters_without_the_password(cluster, monkeypatch, role, password):
    monkeypatch.delenv("PGPASSFILE", raising=False)
    with pytest.raises(sa.exc.OperationalError, match="password"):
        connected(cluster[0], role, password).connect()


@pytest.mark.postgresql
def test_a_missing_password_file_stops_the_first_start(cluster, tmp_path):
    done = run_init(cluster[0], INIT / "10-roles.sql", tmp_path)
    assert done.returncode != 0
    assert "division by zero" in done.stderr
