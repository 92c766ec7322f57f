"""Who may do what: every route that the application has, with all of its methods, by every kind of caller."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_engine import HOLD, MODEL, Api, ids, raw_request, serving
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.api.login import local_address
from service.control.policy import resolve_initial_policy
from service.credentials.attempts import BURST, FailedAttempts
from service.credentials.caller import Role
from service.credentials.files import add_credential, revoke_credential
from service.settings import Settings
from service.store.database import open_database

OPEN = ("/login", "/logout", "/health/live", "/health/ready", "/health", "/metrics")
READS = ("/api/", "/schema", "/dashboard")
SAFE = ("GET", "HEAD", "OPTIONS")
READING_POSTS = ("/api/sql",)
CALLBACK = "/dashboard/_dash-update-component"
ALLOWED_TO = {"open": ("client", "viewer", "operator", None), "infer": ("client",), "read": ("viewer", "operator"),
              "change": ("operator",)}  # fmt: skip


class Guarded:
    """A server with credentials, its file and one key of each role."""

    def __init__(self, api: Api, file: pathlib.Path, keys: dict[str, str]) -> None:
        self.api, self.file, self.keys = api, file, keys

    def ask(self, who: str | None, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[who]}"} if who else {}
        headers |= more.pop("headers", {})
        return self.api.http.request(method, path, headers=headers, follow_redirects=False, **more)

    @contextlib.contextmanager
    def browser(self, who: str) -> Iterator[httpx.Client]:
        """A client that has signed in through the form, as a browser does."""
        with httpx.Client(base_url=self.api.url, timeout=30, trust_env=False) as made:
            answer = made.post("/login", data={"key": self.keys[who]}, headers={"Origin": self.api.url})
            assert answer.status_code == 303, answer.text
            yield made


def keys_of(file: pathlib.Path) -> dict[str, str]:
    now = dt.datetime.now(dt.UTC)
    return {str(role): add_credential(file, f"a-{role}", role, now)[1] for role in Role}


@contextlib.contextmanager
def guarded(folder: pathlib.Path, template: pathlib.Path, **overrides: Any) -> Iterator[Guarded]:
    shutil.copy(template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    resolve_initial_policy(store, Settings(data_dir=str(folder), database=str(store.url), threads=1))
    file = folder / "credentials.json"
    keys = keys_of(file)

    def dashboard(control: Any) -> list[Any]:
        return [mount(create_dashboard(engine=store, control=control))]

    with serving(store, folder, mounts=dashboard, credentials_file=str(file), **overrides) as api:
        yield Guarded(api, file, keys)
    store.dispose()


@pytest.fixture(scope="module")
def module_server(_sqlite_template, tmp_path_factory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("guarded"), _sqlite_template) as made:
        yield made


@pytest.fixture
def server(module_server: Guarded) -> Guarded:
    module_server.api.engine.reset()
    module_server.api.app.state.context.gate.failed = FailedAttempts()
    return module_server


@pytest.fixture
def own_server(_sqlite_template, tmp_path) -> Iterator[Guarded]:
    """One that a test may spoil."""
    with guarded(tmp_path, _sqlite_template) as made:
        yield made


@pytest.fixture
def closed_metrics(_sqlite_template, tmp_path) -> Iterator[Guarded]:
    with guarded(tmp_path, _sqlite_template, protect_metrics=True) as made:
        yield made


def every_call(server: Guarded) -> list[tuple[str, str]]:
    """(method, template) of each route that the application knows, the dashboard's own two among them."""
    found = [
        (str(method), route.path)
        for route in server.api.app.routes
        for method in getattr(route, "methods", ())
        if not route.path.startswith("/dashboard")
    ]
    return [*found, ("GET", "/dashboard/"), ("POST", CALLBACK)]


def needs(method: str, template: str) -> str:
    """The rule, said again in the test's own words."""
    if template in OPEN:
        return "open"
    if template.startswith("/v1/"):
        return "infer"
    if template in (CALLBACK, *READING_POSTS) or ((template == "/" or template.startswith(READS)) and method in SAFE):
        return "read"
    return "change"


def concrete(template: str) -> str:
    return re.sub(r"\{[^}]*\}", "1", template)


def test_every_route_is_closed_to_whom_it_is_not_for(server):
    calls = every_call(server)
    assert len(calls) > 30
    assert {("PUT", "/api/policy"), ("POST", "/api/policy/rollback"), ("POST", "/v1/completions")} <= set(calls)
    for method, template in calls:
        rule, path = needs(method, template), concrete(template)
        if template == "/login" and method == "POST":
            continue  # says 401 itself, see below
        for who in (None, "client", "viewer", "operator"):
            answer = server.ask(who, method, path, content=b"{}", headers={"content-type": "application/json"})
            told = f"{method} {path} by {who}: {answer.status_code} {answer.text[:200]}"
            if who in ALLOWED_TO[rule]:
                assert answer.status_code not in (401, 403), told
            else:
                assert answer.status_code == (401 if who is None else 403), told


def test_a_change_from_a_page_of_another_origin_is_refused_whoever_asks(server):
    for method, template in every_call(server):
        if method in SAFE:
            continue
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            for who in ("client", "viewer", "operator"):
                answer = server.ask(who, method, concrete(template), content=b"{}", headers={"Origin": origin})
                assert answer.status_code == 403, (method, template, who, answer.text)


def test_a_signed_in_browser_changes_something_only_from_a_page_of_this_server(server):
    url = server.api.url
    with server.browser("operator") as browser:
        for method, template in every_call(server):
            if method in SAFE or needs(method, template) not in ("read", "change"):
                continue
            path = concrete(template)
            for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "none"}, {"Origin": "null"}):
                assert browser.request(method, path, json={}, headers=headers).status_code == 403, (method, path)
            for headers in ({"Origin": url}, {"Sec-Fetch-Site": "same-origin"}):
                assert browser.request(method, path, json={}, headers=headers).status_code not in (401, 403)


@pytest.mark.parametrize("answer_to", ["/v1/models", "/api/policy", "/dashboard/", CALLBACK])
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer x", "Basic x", "Basic eDp5", "Digest a=b", "Bearer " + "a" * 5000, "\x80"]
)
def test_a_wrong_credential_is_401_in_the_form_of_its_interface(server, answer_to, given, caplog):
    method = "POST" if answer_to == CALLBACK else "GET"
    answer = server.ask(None, method, answer_to, headers={b"Authorization": given.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    if answer_to.startswith("/v1"):
        assert answer.json()["error"]["code"] == "invalid_api_key"
    else:
        assert answer.headers["content-type"] == "application/problem+json"
    assert "a" * 20 not in caplog.text + answer.text


def test_bearer_and_basic_and_openais_client_are_taken(server):
    assert server.ask("client", "GET", "/v1/models").status_code == 200
    for pair in (f"a-operator:{server.keys['operator']}", f":{server.keys['operator']}"):
        basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        assert server.ask(None, "GET", "/api/policy", headers=basic).status_code == 200
    other = base64.b64encode(f"a-viewer:{server.keys['operator']}".encode()).decode()
    assert server.ask(None, "GET", "/api/policy", headers={"Authorization": f"Basic {other}"}).status_code == 401
    client = server.api.openai.with_options(api_key=server.keys["client"])
    told = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    assert told.choices[0].message.content == "Hello!"


def test_a_key_in_an_address_is_refused_even_where_nobody_is_asked(server, caplog):
    for who, key in server.keys.items():
        for path in (
            f"/metrics?key={key}",
            f"/api/policy?api_key={key}",
            f"/api/plans/{key}/1",
            f"/dashboard/?k={key}",
        ):
            answer = server.ask(who, "GET", path)
            assert answer.status_code == 400, path
            assert key not in answer.text
            logged = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
            assert not [line for line in logged if key in line]  # but for what the test's own client logs


def test_the_actor_of_a_change_is_the_credential_whatever_the_body_says(own_server):
    body = {"coefficients": {"token_fairness": 20}, "actor": "somebody else"}
    answer = own_server.ask("operator", "PUT", "/api/policy", json=body, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["actor"]) == (200, "a-operator")
    back = own_server.ask("operator", "POST", "/api/policy/rollback", json={"actor": "x"}, headers={"If-Match": '"2"'})
    assert (back.status_code, back.json()["actor"]) == (200, "a-operator")


def marked_callbacks(server: Guarded) -> dict[str, int]:
    """The status of a viewer's post of each callback that the server runs, with nothing in it but its name."""
    listed = server.ask("viewer", "GET", "/dashboard/_dash-dependencies").json()
    return {
        callback["output"]: server.ask("viewer", "POST", CALLBACK, json={"output": callback["output"]}).status_code
        for callback in listed
        if callback["clientside_function"] is None
    }


def test_a_viewer_reads_by_callbacks_and_changes_nothing(server):
    statuses = marked_callbacks(server)
    refused = {output for output, status in statuses.items() if status == 403}
    assert any("policy-result" in output for output in refused)
    assert "page.children" not in refused
    assert set(statuses.values()) <= {200, 204, 400, 403, 422}
    for who, expected in ((None, 401), ("client", 403)):
        for output in statuses:
            assert server.ask(who, "POST", CALLBACK, json={"output": output}).status_code == expected
    for output in refused:
        assert server.ask("operator", "POST", CALLBACK, json={"output": output}).status_code == 400


def test_a_browser_without_a_session_is_led_to_the_form_and_back(server):
    page = {"Accept": "text/html,*/*"}
    answer = server.ask(None, "GET", "/dashboard/timeline?last=1h&x=%3C", headers=page)
    assert answer.status_code == 303
    where = httpx.URL(answer.headers["location"])
    assert where.path == "/login"
    assert where.params["next"] == "/dashboard/timeline?last=1h&x=%3C"
    form = server.ask(None, "GET", answer.headers["location"])
    assert form.status_code == 200
    assert 'value="/dashboard/timeline?last=1h&amp;x=%3C"' in form.text
    signed = {"key": server.keys["viewer"], "next": where.params["next"]}
    back = server.ask(None, "POST", "/login", data=signed, headers={"Origin": server.api.url})
    assert (back.status_code, back.headers["location"]) == (303, "/dashboard/timeline?last=1h&x=%3C")
    cookie = back.headers["set-cookie"]
    assert all(part in cookie for part in ("; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"))
    assert "Secure" not in cookie
    assert server.keys["viewer"] not in cookie


@pytest.mark.parametrize("more", [{}, {"X-Forwarded-Proto": "https"}])
def test_behind_a_proxy_with_https_the_cookie_is_for_https_alone(server, more):
    headers = {"Origin": server.api.url.replace("http:", "https:"), **more}
    answer = server.ask(None, "POST", "/login", data={"key": server.keys["viewer"]}, headers=headers)
    assert "; Secure" in answer.headers["set-cookie"]


def test_a_link_from_elsewhere_asks_again_so_that_a_strict_cookie_comes_along(server):
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "cross-site"}
    path = "/dashboard/timeline?a='\"><script>alert(1)</script>"
    answer = server.ask(None, "GET", path, headers=headers)
    assert answer.status_code == 200
    assert 'http-equiv="refresh"' in answer.text
    assert "<script" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_session_reads_with_its_role_until_it_is_signed_out_or_revoked(own_server):
    server = own_server
    with server.browser("viewer") as browser:
        assert browser.get("/api/policy").status_code == 200
        assert browser.get("/dashboard/").status_code == 200
        assert browser.get("/v1/models").status_code == 403
        here = {"Origin": server.api.url}
        assert browser.put("/api/policy", json={}, headers=here).status_code == 403
        kept = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
        assert browser.post("/logout", headers=here).status_code == 303
        assert browser.get("/api/policy").status_code == 401
        assert browser.get("/api/policy", headers=kept).status_code == 200
        revoke_credential(server.file, "a-viewer")
        assert browser.get("/api/policy", headers=kept).status_code == 401
    assert server.ask("operator", "GET", "/api/policy").status_code == 200


def test_a_programs_key_signs_nobody_in_and_a_wrong_one_says_so(server):
    answer = server.ask(None, "POST", "/login", data={"key": server.keys["client"]})
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    wrong = server.ask(None, "POST", "/login", data={"key": "<b>x</b>", "next": "//evil.example"})
    assert wrong.status_code == 401
    assert 'role="alert"' in wrong.text
    assert "<b>" not in wrong.text
    assert 'value="/dashboard/"' in wrong.text
    assert server.ask(None, "POST", "/login", content=b"\xff\xfe").status_code in (401, 429)


@given(st.text(max_size=40))
def test_signing_in_leads_to_a_page_of_the_dashboard_and_nowhere_else(text):
    for where in (text, f"/dashboard/{text}"):
        found = local_address(where)
        assert found.startswith("/dashboard/")
        assert "\\" not in found
        assert found.isprintable()


def test_wrong_keys_are_slowed_for_their_address_and_right_ones_pass(own_server, caplog):
    wrong = own_server.keys["operator"][:-1] + "!"
    statuses = [
        own_server.ask(None, "GET", "/v1/models", headers={"Authorization": f"Bearer {wrong}"}).status_code
        for _ in range(BURST + 5)
    ]
    assert statuses[:BURST] == [401] * BURST
    assert 429 in statuses[BURST:]
    answer = own_server.ask(None, "POST", "/login", data={"key": wrong})
    assert answer.status_code == 429
    assert own_server.ask("client", "GET", "/v1/models").status_code == 200
    assert caplog.text.count("wrong key") == 1
    assert wrong not in caplog.text


def test_metrics_ask_for_a_key_where_a_setting_says_so(closed_metrics):
    found = {who: closed_metrics.ask(who, "GET", "/metrics").status_code for who in (None, *closed_metrics.keys)}
    assert found == {None: 401, "client": 403, "viewer": 200, "operator": 200}
    assert closed_metrics.ask(None, "GET", "/health/ready").status_code == 200


def test_readiness_warns_of_a_credentials_file_that_cannot_be_used(own_server):
    assert own_server.ask(None, "GET", "/health/ready").json()["warnings"] == []
    own_server.file.write_text("{")
    warnings = own_server.ask(None, "GET", "/health/ready").json()["warnings"]
    assert any("credentials file cannot be used" in warning for warning in warnings)
    assert own_server.ask("viewer", "GET", "/api/policy").status_code == 200


def test_with_credentials_any_host_name_may_lead_here(server):
    assert server.ask("viewer", "GET", "/api/policy", headers={"Host": "models.example"}).status_code == 200


def test_a_websocket_is_refused(server):
    head = "GET /dashboard/x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    head += f"Sec-WebSocket-Key: {base64.b64encode(b'0' * 16).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    assert b" 101 " not in raw_request(server.api.url, head).split(b"\r\n")[0]


def test_headers_of_every_answer_keep_pages_to_themselves(server):
    paths = ("/api/policy", "/nothing", "/login", "/metrics", "/v1/models")
    for who, path in [("viewer", "/api/policy"), *((None, path) for path in paths)]:
        headers = server.ask(who, "GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-opener-policy"] == "same-origin"


def test_a_client_that_leaves_ends_its_answer_behind_all_of_it(server):
    """C1 and C13: with authentication, origins and headers around the stream."""
    engine = server.api.engine
    engine.script = lambda submit: [ids("Hel"), HOLD]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    headers = {"Authorization": f"Bearer {server.keys['client']}", "Accept-Encoding": "gzip"}
    with server.api.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_lines()).startswith("data: ")
    wait_until(engine.left.is_set, "the stream to be left")
    assert [reason for _, reason in engine.cancels] == ["abort"]


def test_a_revoked_key_does_not_cut_an_answer_short(own_server):
    """Its next request is refused; what was asked before was allowed."""
    engine = own_server.api.engine
    engine.script = lambda submit: [ids("Hel"), HOLD, ids("lo"), ("stop", None)]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    headers = {"Authorization": f"Bearer {own_server.keys['client']}"}
    with own_server.api.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert engine.holding.wait(20)
        revoke_credential(own_server.file, "a-client")
        engine.release()
        text = "".join(answer.iter_text())
    assert text.rstrip().endswith("[DONE]")
    assert own_server.ask("client", "GET", "/v1/models").status_code == 401
