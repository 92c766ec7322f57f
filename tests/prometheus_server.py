"""A Prometheus of Debian's that scrapes one target, and questions to it."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import httpx
from needs import program
from promtool import INSTRUCTION
from waiting import free_port


@contextlib.contextmanager
def prometheus_scraping(target: str, folder: pathlib.Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes `target` twice a second and keeps everything in `folder`."""
    executable = program("prometheus", instruction=INSTRUCTION)
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
        f"scrape_configs: [{{job_name: helios, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    port = free_port()
    options = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        "--log.level=warn",
        "--enable-feature=exemplar-storage",
    )
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [executable, *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=output, stderr=output
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()
            print(log.read_text())


def instant(address: str, query: str) -> dict[tuple[str, ...], float]:
    """The query's newest values by their labels, the scrape's own left out; empty while the server starts."""
    return {
        tuple(value for label, value in sorted(found["metric"].items()) if label not in ("instance", "job")): float(
            found["value"][1]
        )
        for found in _asked(address, "query", query=query).get("result", ())
    }


def exemplars(address: str, query: str) -> list[dict]:
    """The exemplars of the last day of the series that `query` selects: labels, value and timestamp."""
    found = _asked(address, "query_exemplars", query=query, start="0", end="9999999999")
    return [exemplar for series in found for exemplar in series["exemplars"]]


def _asked(address: str, what: str, **parameters: str):
    try:
        answer = httpx.get(f"{address}/api/v1/{what}", params=parameters).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return answer.get("data") or {}
