"""Where spans are sent and how: the setting --otlp-endpoint and the standard's `OTEL_*` variables.

Read where it is used, in each process, and never written down: headers carry credentials.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

log = logging.getLogger(__name__)

DEFAULT_ENDPOINT = "http://localhost:4318"
DEFAULT_TIMEOUT_S = 10.0
COMPRESSIONS = ("gzip", "deflate", "none")
_PROTOCOL = "http/protobuf"
_HEADER_VALUE = re.compile(r"(?:[!-~\xa0-\xff](?:[ \t!-~\xa0-\xff]*[!-~\xa0-\xff])?)?")
_WHOLE_NUMBERS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)
_MOST_DIGITS = 15
_CREDENTIAL_PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)


class ExporterSettings(NamedTuple):
    """One OTLP/HTTP collector. `url`: of its traces. `compression`: one of COMPRESSIONS.

    The rest are paths of PEM files: `certificate` of those who may have signed the collector's, the others of our own,
    for a collector that asks for one.
    """

    url: str
    headers: Mapping[str, str] = {}
    compression: str = "gzip"
    timeout_s: float = DEFAULT_TIMEOUT_S
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


def exporter_settings(endpoint: str | None, environment: Mapping[str, str]) -> ExporterSettings | None:
    """The collector that `endpoint` (--otlp-endpoint) or else the environment names; None where no spans are wanted.

    A value that cannot be used is left out and said in the log, as the standard asks.
    """
    env = _Variables(environment)
    url = _url(endpoint, env)
    if url is None or not _wanted(env):
        return None
    protocol = env.own("PROTOCOL")
    if protocol not in (None, _PROTOCOL):
        log.warning("OTEL_EXPORTER_OTLP_PROTOCOL is %s; spans are sent as %s to %s", protocol, _PROTOCOL, url)
    return ExporterSettings(
        url=url,
        headers=_headers(env.own("HEADERS")),
        compression=_compression(env.own("COMPRESSION")),
        timeout_s=_timeout(env.own("TIMEOUT")),
        certificate=env.own("CERTIFICATE"),
        client_certificate=env.own("CLIENT_CERTIFICATE"),
        client_key=env.own("CLIENT_KEY"),
    )


def environment_problem(environment: Mapping[str, str]) -> str | None:
    """One line about a variable with which OpenTelemetry's SDK cannot even be imported, or None."""
    for name in _WHOLE_NUMBERS:
        text = environment.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            return f"{name} must be a whole number of at most {_MOST_DIGITS} digits, not {text[:40]!r}"
    providers = {
        point.name for point in importlib.metadata.entry_points(group="opentelemetry_otlp_credential_provider")
    }
    for name in _CREDENTIAL_PROVIDERS:
        provider = environment.get(name, "").strip()
        if provider and provider not in providers:
            return f"{name} names {provider!r}, which is not installed"
    names = [name.strip() for name in environment.get("OTEL_PROPAGATORS", "").split(",") if name.strip()]
    if "none" in (name.lower() for name in names):
        return None
    known = {point.name for point in importlib.metadata.entry_points(group="opentelemetry_propagator")}
    missing = [name for name in names if name not in known]
    if not missing:
        return None
    return f"OTEL_PROPAGATORS names {missing[0]!r}, which is not installed; there are {', '.join(sorted(known))}"


class _Variables:
    """The environment; an empty variable is one that is not set."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def get(self, name: str) -> str | None:
        return self._environment.get(name, "").strip() or None

    def own(self, name: str) -> str | None:
        """The variable of the exporter, of traces before that of all signals."""
        return self.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or self.get(f"OTEL_EXPORTER_OTLP_{name}")


def _wanted(env: _Variables) -> bool:
    """Whether nobody has switched spans off; that wins over every address."""
    if (env.get("OTEL_SDK_DISABLED") or "").lower() == "true":
        return False
    exporters = _exporters(env)
    if "none" in exporters:
        return False
    for name in exporters - {"otlp"}:
        log.warning("OTEL_TRACES_EXPORTER names %s; Helios has otlp and none", name)
    return True


def _exporters(env: _Variables) -> set[str]:
    names = (env.get("OTEL_TRACES_EXPORTER") or "").lower().split(",")
    return {name.strip() for name in names} - {""}


def _url(endpoint: str | None, env: _Variables) -> str | None:
    if endpoint is not None:
        return _of_base(endpoint)
    named = (
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", env.get("OTEL_EXPORTER_OTLP_ENDPOINT")),
    )
    for name, value in named:
        if value is None:
            continue
        if _is_http(value):
            return value if "TRACES" in name else f"{value.rstrip('/')}/v1/traces"
        log.warning("%s is %r, which is no http:// or https:// address; it is left out", name, value)
    return f"{DEFAULT_ENDPOINT}/v1/traces" if "otlp" in _exporters(env) else None


def _of_base(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


def _is_http(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _headers(value: str | None) -> dict[str, str]:
    """Those that HTTP can carry. A value is never said: it may be a password."""
    found = parse_env_headers(value or "", liberal=True)
    for name, text in found.items():
        if not _HEADER_VALUE.fullmatch(text):
            log.warning("OTEL_EXPORTER_OTLP_HEADERS: the value of %r is none that HTTP can carry; it is left out", name)
    return {name: text for name, text in found.items() if _HEADER_VALUE.fullmatch(text)}


def _compression(value: str | None) -> str:
    if value is None or value.lower() in COMPRESSIONS:
        return (value or "gzip").lower()
    log.warning("OTEL_EXPORTER_OTLP_COMPRESSION is %r; there are %s", value, ", ".join(COMPRESSIONS))
    return "gzip"


def _timeout(value: str | None) -> float:
    """Seconds, as for OpenTelemetry's own exporter in Python."""
    try:
        seconds = float(value or DEFAULT_TIMEOUT_S)
    except ValueError:
        seconds = 0.0
    if 0.0 < seconds < 86_400.0:
        return seconds
    log.warning("OTEL_EXPORTER_OTLP_TIMEOUT is %r; it must be a number of seconds above 0", value)
    return DEFAULT_TIMEOUT_S
