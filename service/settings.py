"""Every setting of `helios serve`, frozen, resolved once and handed to each process as JSON.

The environment is read here and nowhere else. Each field's annotation holds its help text; the command line and the
tests are made from it.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Annotated

import msgspec

DEFAULT_SERVER = "http://127.0.0.1:8000"
DEFAULT_MODEL = "smollm2-135m-instruct"
SOCKET_PATH_BYTES = 107  # sockaddr_un holds 108 with the closing NUL
SUPERVISOR_PID = "HELIOS_SUPERVISOR_PID"


def about(text: str, *, internal: bool = False) -> msgspec.Meta:
    """What a setting means. `internal`: no command-line option, only tests and later versions change it."""
    return msgspec.Meta(description=text, extra={"internal": internal})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved settings of one `helios serve`. Paths are absolute."""

    model: Annotated[str, about("A model's name, or a folder with a Hugging Face checkpoint.")] = DEFAULT_MODEL
    host: Annotated[str, about("The address to listen on; one that other machines reach needs --credentials-file.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, about("The TCP port to listen on.")] = 8000
    workers: Annotated[int, about("Processes that answer HTTP at this port, side by side.")] = 1
    credentials_file: Annotated[
        str | None, about("Ask everyone for a key of this file, which helios keys makes; without it nobody is asked.")
    ] = None
    protect_metrics: Annotated[bool, about("Ask for a key at /metrics too, with --credentials-file.")] = False
    data_dir: Annotated[str, about("Where the journal, the SQLite database and run files live.")]
    database: Annotated[str, about("The trace store: postgresql://USER@HOST/NAME, or a SQLite file's path or URL.")]
    device: Annotated[
        str, about("What the programs run on; simulated: nothing, they take measured times and answer at random.")
    ] = "cpu"
    catalog: Annotated[
        str | None, about("CSV of measured graphs (kind, B, D, W, P, ...), whose times a simulated device takes.")
    ] = None
    time_scale: Annotated[
        float, about("What the times of a simulated device are multiplied by; 0.5: twice as fast.")
    ] = 1.0
    acceptance: Annotated[
        str | None, about("CSV of how many drafts are accepted on a simulated device (pos1, ... or fit_p1, fit_q).")
    ] = None
    dtype: Annotated[str, about("The number format of weights and KV pages.")] = "float32"
    max_context: Annotated[
        int | None,
        about("Tokens of prompt and output per request; by default the model's own limit, but at most 2,048."),
    ] = None
    kv_pages: Annotated[
        int | None,
        about("KV pages in the pool; by default 16 full contexts, but at most a quarter of the machine's memory."),
    ] = None
    request_slots: Annotated[int, about("Requests that may be resident at once.")] = 64
    threads: Annotated[int, about("Threads for the arithmetic on a CPU; all cores but one by default.")]
    prefill_capacities: Annotated[
        tuple[int, ...], about("Prompt tokens of the prepared prefill programs.", internal=True)
    ] = (4, 16, 32, 64, 128, 256, 512)
    decode_batches: Annotated[tuple[int, ...], about("Lanes of the prepared decode programs.", internal=True)] = (
        1,
        2,
        4,
        8,
        16,
    )
    scheduler_policy: Annotated[
        str | None,
        about(
            "Start with this preset (budget:512: a token budget for comparison); a change makes a new policy version. "
            "interactive and budget:N are for --mixed-prefill."
        ),
    ] = None
    scheduler_terminal_value: Annotated[float | None, about("Start with this terminal_value.")] = None
    scheduler_terminal_age_price: Annotated[float | None, about("Start with this terminal_age_price.")] = None
    mtp_adaptive_verification_alpha: Annotated[
        float | None, about("Start with this adaptive_verification_alpha, above 0.")
    ] = None
    scheduler_prompt_wait_price: Annotated[float | None, about("Start with this prompt_wait_price; 0: off.")] = None
    scheduler_prompt_rank_age_ms: Annotated[float | None, about("Start with this prompt_rank_age_ms.")] = None
    scheduler_decode_gap_weight: Annotated[float | None, about("Start with this decode_gap_weight.")] = None
    scheduler_decode_late_price: Annotated[float | None, about("Start with this decode_late_price; 0: off.")] = None
    scheduler_decode_cadence: Annotated[str | None, about("Start with decode_cadence on or off.")] = None
    scheduler_token_budget: Annotated[int | None, about("Start with this token_budget; 0: plans by value.")] = None
    scheduler_acceptance_model: Annotated[str | None, about("Start with acceptance_model prefix or pooled.")] = None
    scheduler_checkpoint_extra_work_fraction: Annotated[
        float, about("Extra work for cached states of a prompt, as a share of its prefill.")
    ] = 0.05
    verification: Annotated[str, about("Rows that verify drafts per request: adaptive, or always N with fixed:N.")] = (
        "adaptive"
    )
    draft_tokens: Annotated[int, about("Drafts per request and round at the most; 0: no speculation.")] = 0
    draft_head: Annotated[
        str, about("A draft head's file; auto: the shipped one that fits the model, if any; none: copies only.")
    ] = "auto"
    draft_allocation: Annotated[
        str, about("Who divides a round's rows: none (all requests alike), host, or device (by confidence).")
    ] = "none"
    speculative_token_capacity: Annotated[
        int, about("Rows in all that a speculative round may verify, with --draft-tokens.")
    ] = 32
    mixed_prefill: Annotated[bool, about("Also prepare programs that serve a prompt beside decoding requests.")] = False
    mixed_prompt_rows: Annotated[
        int, about("Prompts that such a program serves at once, from 1 to 4, with --mixed-prefill.")
    ] = 1
    mixed_batch_step: Annotated[
        int | None,
        about("Prepare them for every so many requests too, such as 8; by default for 2, 4, 8 and 16."),
    ] = None
    mixed_prompt_step: Annotated[
        int | None,
        about("Prepare them for every so many prompt tokens too, such as 64; by default for 64, 128, 256 and 512."),
    ] = None
    snapshot_rows: Annotated[
        int | None, about("Cached states of finished prompts and answers; by default twice the request slots.")
    ] = None
    otlp_endpoint: Annotated[
        str | None,
        about(
            "Send OpenTelemetry spans to this OTLP/HTTP collector; without it the OTEL_EXPORTER_OTLP_* variables say."
        ),
    ] = None
    otlp_backlog: Annotated[
        int | None,
        about("Disk space of the journal that may wait for the collector; by default most of --journal-budget."),
    ] = None
    journal_budget: Annotated[int, about("Disk space for the journal, such as 8GiB.")] = 1 << 30
    journal_segment_bytes: Annotated[int, about("Size of one journal file.", internal=True)] = 64 << 20
    journal_sync_ms: Annotated[int, about("Time between syncs to disk: what a power cut can lose.")] = 1000
    store_wal_limit: Annotated[
        int, about("Bytes of SQLite's write-ahead log beyond which the recorder waits for its readers.", internal=True)
    ] = 256 << 20
    tracing: Annotated[
        bool,
        about("False: no plan is written down; only for measuring what the trace costs.", internal=True),
    ] = True
    retention_days: Annotated[int, about("Days for which the trace store keeps plans and requests; 0: for good.")] = 30
    retention_bytes: Annotated[
        int, about("Size of the trace store's rows beyond which the oldest plans go; 0: no limit.")
    ] = 10 << 30
    queue_limit: Annotated[int, about("Requests that may wait for a slot.", internal=True)] = 1024

    @property
    def run_dir(self) -> pathlib.Path:
        """Sockets, process settings and metric snapshots of the running server."""
        return pathlib.Path(self.data_dir) / "run"

    @property
    def previews_dir(self) -> pathlib.Path:
        """A folder for each preview of a policy."""
        return self.run_dir / "previews"

    @property
    def address_path(self) -> pathlib.Path:
        """Holds the running server's address, such as http://127.0.0.1:8000."""
        return self.run_dir / "address"

    @property
    def shared_service_metrics(self) -> pathlib.Path | None:
        """Where several workers of the service keep what each of them counts; None where there is one worker."""
        return self.run_dir / "service-metrics" if self.workers > 1 else None

    @property
    def journal_dir(self) -> pathlib.Path:
        """The journal's segments."""
        return pathlib.Path(self.data_dir) / "journal"

    @property
    def socket_dir(self) -> pathlib.Path:
        """Where the engine's socket lies: run_dir, or a short private folder when that path exceeds 107 bytes."""
        if len(os.fsencode(self.run_dir / "engine.sock")) <= SOCKET_PATH_BYTES:
            return self.run_dir
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        for base in (pathlib.Path(tempfile.gettempdir()), pathlib.Path("/tmp")):
            folder = base / f"helios-{os.getuid()}-{digest}"
            if len(os.fsencode(folder / "engine.sock")) <= SOCKET_PATH_BYTES:
                break
        return folder

    @property
    def most_otlp_backlog(self) -> int:
        """Bytes of closed segments that may wait for the collector alone.

        Never so many that the journal's budget takes them first: beside them it holds the segment that is written, the
        one after it and one that is being closed.
        """
        segment = min(self.journal_segment_bytes, self.journal_budget // 4)
        room = max(0, self.journal_budget - 3 * segment)
        return room if self.otlp_backlog is None else min(room, self.otlp_backlog)

    @property
    def engine_endpoint(self) -> str:
        """The engine's ZeroMQ endpoint, the same for every process of this data directory."""
        return f"ipc://{self.socket_dir / 'engine.sock'}"

    @property
    def engine_metrics_path(self) -> pathlib.Path:
        """The engine's shared-memory counters."""
        return self.run_dir / "engine.metrics"

    @property
    def recorder_metrics_path(self) -> pathlib.Path:
        """The recorder's shared-memory counters."""
        return self.run_dir / "recorder.metrics"


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor tells one engine run: its settings, identity and first policy."""

    settings: Settings
    run_id: str
    endpoint: str
    policy_version: int
    coefficients: dict[str, float | int | str]


def default_data_dir(environment: Mapping[str, str] | None = None) -> pathlib.Path:
    """$HELIOS_DATA_DIR, else $XDG_DATA_HOME/helios, else ~/.local/share/helios."""
    env = os.environ if environment is None else environment
    if env.get("HELIOS_DATA_DIR"):
        return pathlib.Path(env["HELIOS_DATA_DIR"]).expanduser().resolve()
    base = env.get("XDG_DATA_HOME")
    root = pathlib.Path(base) if base else pathlib.Path.home() / ".local" / "share"
    return (root / "helios").resolve()


def server_address(environment: Mapping[str, str] | None = None) -> str:
    """$HELIOS_SERVER, else the address of the server that runs on the default data directory, else port 8000's."""
    env = os.environ if environment is None else environment
    if env.get("HELIOS_SERVER"):
        return env["HELIOS_SERVER"]
    try:
        return (default_data_dir(env) / "run" / "address").read_text(encoding="utf-8").strip() or DEFAULT_SERVER
    except (OSError, UnicodeDecodeError):
        return DEFAULT_SERVER


def server_key(environment: Mapping[str, str] | None = None) -> str:
    """$HELIOS_KEY: what commands show to a server that asks for credentials; empty when there is none."""
    return (os.environ if environment is None else environment).get("HELIOS_KEY", "").strip()


def default_threads() -> int:
    """Math threads for CPU programs: all cores but one, which the loop, HTTP and the recorder share."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, available - 1)


def process_environment() -> Mapping[str, str]:
    """The environment, for what a standard of others defines, such as OpenTelemetry's `OTEL_*` variables."""
    return os.environ


def supervisor_pid(environment: Mapping[str, str] | None = None) -> int | None:
    """The supervisor that started this process, or None when it was started by hand."""
    text = (os.environ if environment is None else environment).get(SUPERVISOR_PID, "")
    return int(text) if text.isascii() and text.isdigit() else None


def child_environment(pid: int, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the supervisor `pid` hands to its children: its own environment, its pid, and where this code lies."""
    env = dict(os.environ if environment is None else environment)
    code = str(pathlib.Path(__file__).resolve().parent.parent)
    paths = [code, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    return {**env, SUPERVISOR_PID: str(pid), "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
