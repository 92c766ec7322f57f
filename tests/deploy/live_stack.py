"""A server on the simulated device over PostgreSQL, a Prometheus that scrapes it, and a short load with everything.

The load drafts, explores, changes the policy and lets requests wait, so that every panel has something to show. It ends
when what it is for has happened and been scraped, not after a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
import threading
import time
from collections.abc import Iterator

import httpx
import sqlalchemy as sa
from needs import program
from promtool import INSTRUCTION
from waiting import free_port, wait_until

from service.load.server import byte_model
from tests.deploy.grafana_files import ROOT
from tests.e2e.helios_server import HeliosServer, serving

SLOTS = 4
STREAMS = 6
LONG_S = 150.0
"""For what a busy machine may take long for."""
NOTE = "learn durations anew, often"
CATALOG = """kind,B,D,W,P,prefill_capacity,ctx,duration_ms
prefill,1,0,0,16,16,,3
prefill,1,0,0,64,64,,6
decode,1,0,1,1,0,,5
decode,2,0,1,2,0,,5.2
decode,4,0,1,4,0,0,5
decode,4,0,1,4,0,400,8
speculative,4,1,2,8,0,,6.5
speculative,4,3,4,16,0,0,7
speculative,4,3,4,16,0,400,11
"""
"""Some times grow with the context, so that predictions are wrong by a little."""
ACCEPTANCE = "target,pos1,pos2,pos3\nany,0.8,0.6,0.4\n"
PROMETHEUS = """
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: ["%(rules)s"]
scrape_configs:
  - job_name: helios
    static_configs: [{targets: ["127.0.0.1:%(port)d"]}]
"""


HTTP = httpx.Client(verify=False, timeout=30)  # plain HTTP, no certificates to load


@dataclasses.dataclass(frozen=True)
class Stack:
    """What runs, and the time of the load as Prometheus' clock and PostgreSQL's have it, s since 1970."""

    helios: HeliosServer
    prometheus: str
    database: sa.Engine
    began: float
    ended: float

    def query(self, expression: str) -> list[dict]:
        """A PromQL query over the load, once a second."""
        words = {"query": expression, "start": self.began, "end": self.ended, "step": "1"}
        return get(f"{self.prometheus}/api/v1/query_range", **words)["result"]

    def exemplars(self, expression: str) -> list[dict]:
        """Those of the series in an expression during the load."""
        return get(f"{self.prometheus}/api/v1/query_exemplars", query=expression, start=self.began, end=self.ended)

    def rows(self, query: str) -> list[dict]:
        """A query to PostgreSQL as it is, in a transaction that may only read."""
        with self.database.connect() as connection:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            return [dict(row._mapping) for row in connection.exec_driver_sql(query.replace("%", "%%"))]


def get(url: str, **words: object):
    """The data of Prometheus' answer; fails with its error."""
    answer = HTTP.get(url, params=words).json()
    assert answer["status"] == "success", f"{answer.get('error')}: {words}"
    return answer["data"]


@contextlib.contextmanager
def scraping(port: int, folder: pathlib.Path) -> Iterator[str]:
    """The address of a Prometheus with the committed rules that scrapes this port of 127.0.0.1."""
    executable = program("prometheus", instruction=INSTRUCTION)
    folder.mkdir()
    rules = ROOT / "deploy" / "prometheus" / "rules" / "*.yml"
    (folder / "prometheus.yml").write_text(PROMETHEUS % {"rules": rules, "port": port})
    own = free_port()
    command = [executable, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{own}", "--enable-feature=exemplar-storage", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{own}"
        finally:
            server.kill()
            server.wait()
            print((folder / "log").read_text())


@contextlib.contextmanager
def stack(folder: pathlib.Path, database: str) -> Iterator[Stack]:
    """All of it, after the load."""
    program("prometheus", instruction=INSTRUCTION)  # before anything is started
    (folder / "catalog.csv").write_text(CATALOG)
    (folder / "acceptance.csv").write_text(ACCEPTANCE)
    options = ["--model", byte_model(), "--device", "simulated", "--catalog", str(folder / "catalog.csv")]
    options += ["--acceptance", str(folder / "acceptance.csv"), "--draft-tokens", "3", "--request-slots", str(SLOTS)]
    options += ["--database", database, "--scheduler-policy", "balanced"]
    with serving(folder / "data", *options) as helios, scraping(helios.port, folder / "prometheus") as prometheus:
        wait_until(lambda: scraped(prometheus, "flare_engine_up"), "the first scrape")
        began = time.time()
        with load(helios):
            change_policy(helios)
            wait_until(lambda: enough(prometheus), "the load to have explored and drafted", LONG_S)
        drained(helios, prometheus)
        engine = sa.create_engine(database)
        yield Stack(helios, prometheus, engine, began, time.time())
        engine.dispose()


def scraped(prometheus: str, expression: str) -> float:
    """The newest value of an expression, added over its series; 0 while there is none."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):  # it is starting
        found = HTTP.get(f"{prometheus}/api/v1/query", params={"query": expression}).json()["data"]["result"]
        return sum(float(one["value"][1]) for one in found)
    return 0.0


@contextlib.contextmanager
def load(helios: HeliosServer) -> Iterator[None]:
    """Streams, more of them than there are slots, one after the other until the block ends."""
    stop = threading.Event()
    model = helios.http.get("/v1/models").json()["data"][0]["id"]

    def keep_asking(number: int) -> None:
        with httpx.Client(base_url=helios.base, timeout=60) as client:
            seed = 0
            while not stop.is_set():
                seed += 1
                body = {"model": model, "prompt": f"{number} {seed} " + "word " * (5 * number), "max_tokens": 60}
                trace = {"traceparent": f"00-{number + 1:032x}-{seed:016x}-01"}
                body |= {"stream": True, "seed": seed}
                with client.stream("POST", "/v1/completions", json=body, headers=trace) as answer:
                    assert answer.status_code == 200, answer.read()
                    for _ in answer.iter_lines():
                        pass

    threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def change_policy(helios: HeliosServer) -> None:
    """Estimates are stale after 0.3 s from now on, so that refresh has something to do; by somebody, for a reason."""
    version = helios.http.get("/api/policy").headers["etag"]
    wanted = {"coefficients": {"estimate_ttl_ns": 300_000_000}, "actor": "ann", "note": NOTE}
    answer = helios.http.put("/api/policy", json=wanted, headers={"If-Match": version})
    assert answer.status_code == 200, answer.text


def enough(prometheus: str) -> bool:
    """Whether everything that a panel shows has happened, in what was scraped."""
    executed = 'flare_scheduler_executions_total{class="%s"}'
    probes = [scraped(prometheus, executed % reason) for reason in ("timing_refresh", "acceptance_learning")]
    ended = scraped(prometheus, 'flare_requests_total{outcome="length"}')
    samples = scraped(prometheus, "min(count_over_time(flare_engine_up[5m]))")
    return min(probes) >= 1 and ended >= 2 * STREAMS and samples >= 6


def drained(helios: HeliosServer, prometheus: str) -> None:
    """Wait until SQL has every plan and Prometheus the last counters."""
    wait_until(lambda: helios.metric("flare_requests_running") == 0, "the requests to end")
    wait_until(lambda: helios.metric('flare_trace_lag_seconds{sink="sql"}') == 0, "the store to catch up")
    tokens = helios.metric("flare_output_tokens_total")
    wait_until(lambda: scraped(prometheus, "flare_output_tokens_total") == tokens, "the last scrape")
