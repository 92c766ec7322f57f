"""`python -m service.app` as the supervisor starts it, with an engine on a real socket."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import msgspec
import openai
import pytest
from fake_engine import MODEL_TEXT, READY, ids

import service.app
from service.control.policy import resolve_initial_policy
from service.ipc.messages import Accepted, Cancel, ConfigurePolicy, Hello, PolicyAcknowledged, Submit, Tokens
from service.ipc.server import EngineServer
from service.settings import Settings
from service.store.database import open_database

ROOT = pathlib.Path(__file__).parents[2]


class SocketEngine:
    """An engine thread on a real EngineServer. Answers "Hello"; holds requests whose prompt asks for it."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        self.cancelled = threading.Event()
        self.policies: list[int] = []
        self._ready = msgspec.structs.replace(READY, run_id=run_id)
        self._server = EngineServer(endpoint)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        with self._server as server:
            while not self._stop.is_set():
                server.socket.poll(20)
                for client, message in server.receive():
                    server.send(client, self._answers(message))

    def _answers(self, message: object) -> list:
        match message:
            case Hello():
                return [self._ready]
            case ConfigurePolicy():
                self.policies.append(message.version)
                return [PolicyAcknowledged(message.version, 3)]
            case Submit():
                first = Tokens(message.request_id, ids("Hello"), len(message.prompt_token_ids), 5)
                last = Tokens(message.request_id, [], len(message.prompt_token_ids), 6, "stop")
                hold = message.max_output_tokens == 99
                return [Accepted(message.request_id), first, *([] if hold else [last])]
            case Cancel():
                self.cancelled.set()
        return []


@pytest.fixture
def settings(tmp_path: pathlib.Path, sqlite_url: str) -> Settings:
    """Settings over a checkpoint directory whose weights nobody reads here."""
    model = tmp_path / "tiny"
    model.mkdir()
    MODEL_TEXT.tokenizer.save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "eos_token_id": 256}))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))
    (model / "model.safetensors").write_bytes(b"")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Settings(data_dir=str(tmp_path), database=sqlite_url, threads=1, model=str(model), port=port)
    made.socket_dir.mkdir(parents=True, exist_ok=True)
    store = open_database(sqlite_url)
    resolve_initial_policy(store, made)
    store.dispose()
    return made


def written(settings: Settings) -> str:
    path = pathlib.Path(settings.data_dir) / "service.json"
    path.write_bytes(msgspec.json.encode(settings))
    return str(path)


def wait_for(condition, patience_s: float = 60.0) -> None:
    """Polls what another process does; fails when it does not come about."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "service.app", written(settings)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=dict(os.environ)) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def ready(settings: Settings, run_id: str):
    def check() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{settings.port}/health/ready", trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["run_id"] == run_id

    return check


def test_the_process_outlives_its_engine_and_ends_in_order(settings, process):
    engine = SocketEngine(settings.engine_endpoint, "one")
    wait_for(ready(settings, "one"))
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{settings.port}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "Hi"}]
    answer = client.chat.completions.create(model="tiny", messages=messages)
    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == ("Hello", 6)

    page = httpx.get(f"http://127.0.0.1:{settings.port}/dashboard/", trust_env=False)
    assert page.status_code == 200
    assert "html" in page.headers["content-type"]

    held = client.chat.completions.create(model="tiny", messages=messages, max_tokens=99, stream=True)
    assert [next(held).choices[0].delta.content for _ in range(2)] == ["", "Hello"]
    engine.close()
    with pytest.raises(openai.APIError, match="went away"):
        next(held)

    second = SocketEngine(settings.engine_endpoint, "two")
    wait_for(ready(settings, "two"))
    url = f"http://127.0.0.1:{settings.port}/api/policy"
    body = {"coefficients": {"token_fairness": 20}}
    assert httpx.put(url, json=body, headers={"If-Match": '"1"'}, trust_env=False).json()["version"] == 2
    second.close()
    third = SocketEngine(settings.engine_endpoint, "three")  # says that it started with version 1
    wait_for(lambda: third.policies == [2])

    held = client.chat.completions.create(model="tiny", messages=messages, max_tokens=99, stream=True)
    assert [next(held).choices[0].delta.content for _ in range(2)] == ["", "Hello"]
    process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError, match="shutting down"):
        next(held)
    assert process.wait(10) == 0
    assert third.cancelled.wait(10)
    third.close()
    assert b"Traceback" not in process.stderr.read()


@pytest.fixture
def in_this_process(monkeypatch):
    """main() without its ties to a parent process and to signals."""
    monkeypatch.setattr(service.app, "guard_child", lambda: None)
    monkeypatch.setattr(service.app, "install_stop_handler", lambda *_: None)


@pytest.mark.usefixtures("in_this_process")
def test_a_port_in_use_is_exit_2_with_the_way_out(settings, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.port))
        taken.listen()
        assert service.app.main([written(settings)]) == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"database": "mysql://somewhere/helios"}, "mysql"),
        ({"host": "host.invalid"}, "--port"),
    ],
)
def test_settings_that_cannot_be_served_are_exit_2(settings, changes, words, capsys):
    assert service.app.main([written(msgspec.structs.replace(settings, **changes))]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("arguments", [[], ["/no/such/file.json"], ["a", "b"]])
def test_wrong_arguments_are_exit_2(arguments, capsys):
    assert service.app.main(arguments) == 2
    assert capsys.readouterr().err
