"""Host headers: malformed ones are 400, and a loopback server answers under loopback names only."""

from __future__ import annotations

import pytest
from fake_engine import Api, raw_request
from litestar.datastructures import Headers

from service.api.errors import BadRequest, CrossOrigin
from service.api.origins import check_host

READS = ["/api/policy", "/api/plans", "/v1/models", "/schema/openapi.json", "/"]
CHANGES = ["/v1/chat/completions", "/v1/completions", "/v1/tokenize", "/api/policy/rollback"]
MALFORMED = [
    "127.0.0.1:8351, evil", "127.0.0.1:port", "127.0.0.1:99999", "a b", "a/b", "user@localhost", "[::1", "[zz]",
    "localhost:-1", "localhost#", "localhost?x", "\\localhost", ":80", "[1.2.3.4.5]",
]  # fmt: skip


@pytest.mark.parametrize("host", MALFORMED)
@pytest.mark.parametrize("path", [*READS, "/health/live", "/metrics", "/nothing", "/v1/nothing"])
def test_a_malformed_host_is_400_and_leaves_no_traceback(api: Api, host, path, caplog):
    answer = api.http.get(path, headers={"Host": host})
    assert answer.status_code == 400 or (answer.status_code == 404 and "nothing" in path), answer.text
    assert "host header" in answer.text.lower() or answer.status_code == 404
    assert [record for record in caplog.records if record.exc_info] == []


def test_two_host_headers_are_400(api: Api):
    for second in ("localhost", "evil.example"):
        head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: {second}\r\nConnection: close\r\n\r\n"
        assert b" 400 " in raw_request(api.url, head).split(b"\r\n")[0]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.168.1.5", "localhost.evil.example", "[::]"])
def test_a_loopback_server_lets_nothing_be_read_or_changed_under_another_name(api: Api, host):
    answers = [api.http.get(path, headers={"Host": host}) for path in READS]
    answers += [api.http.post(path, json={}, headers={"Host": host}) for path in CHANGES]
    for answer in answers:
        assert answer.status_code == 403, answer.url
        body = answer.json()
        assert body.get("code", body.get("error", {}).get("code")) == "cross_origin"
        assert "localhost" in answer.text
    assert api.http.get("/health/live", headers={"Host": host}).status_code == 200
    assert api.http.get("/health/ready", headers={"Host": host}).status_code == 200
    assert api.http.get("/health", headers={"Host": host}).status_code == 200
    assert api.http.get("/metrics", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "app.localhost:80", "127.0.0.1", "127.9.9.9:5", "[::1]:80"]
)
def test_every_loopback_name_is_answered(api: Api, host):
    assert api.http.get("/v1/models", headers={"Host": host}).status_code == 200


def test_a_program_that_sends_no_host_is_answered(api: Api):
    assert b" 200 " in raw_request(api.url, "GET /v1/models HTTP/1.0\r\n\r\n").split(b"\r\n")[0]


def test_a_server_for_a_network_answers_under_any_name_but_no_malformed_one():
    check_host(Headers({"host": "models.example:8080"}), loopback_only=False)
    with pytest.raises(CrossOrigin):
        check_host(Headers({"host": "models.example:8080"}), loopback_only=True)
    for host in MALFORMED:
        with pytest.raises(BadRequest):
            check_host(Headers({"host": host}), loopback_only=False)
