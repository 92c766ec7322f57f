"""helios policy preview."""

from __future__ import annotations

import json
from typing import Any

from scheduler.policy import PolicyConfig

ID = "0" * 24
BALANCED = PolicyConfig.balanced().as_dict()


def figures(ttft_ms: float) -> dict[str, Any]:
    spread = [[share, ttft_ms] for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)]
    return {
        "ttft_ms": spread, "time_per_token_ms": spread, "inter_token_ms": [], "largest_gap_ms": None,
        "tokens_per_s": 1234.5,
        "prompt_tokens_per_s": 10.0, "fairness_requests": 0.9, "exploration_share": 0.01, "busy_share": 0.5,
        "completed": 7,
    }  # fmt: skip


def status(state: str, **values: Any) -> dict[str, Any]:
    ended = state in ("done", "failed", "cancelled")
    asked = {"draft": {**BALANCED, "terminal_value": 1.0}, "running": BALANCED}
    return {"id": ID, "state": state, "ended": ended, "progress": 0.5, "message": "words", "request": asked, **values}


RESULT = {
    "window": {"run_id": "run-1", "since": "2026-03-01T12:00:00Z", "until": "2026-03-01T12:10:00Z"},
    "requests": 7, "plans": 20_000, "seconds": 6.5, "recorded": figures(100), "running": figures(90),
    "draft": figures(45), "notes": ["A note."],
    "simulator_error": [
        {"name": "ttft_p50_ms", "recorded": 100, "simulated": 80, "ratio": 0.8},
        {"name": "tokens_per_s", "recorded": 1, "simulated": 1, "ratio": 1.0},
    ],
    "sweep_axes": [{"coefficient": "terminal_value", "values": [1.0]}],
    "sweep": [{"values": [1.0], "figures": figures(45), "is_draft": True}],
}  # fmt: skip


def test_a_preview_is_followed_and_shown_side_by_side(helios, control):
    control.answers["POST", "/api/policy/preview"] = (202, status("queued"))
    control.answers["GET", f"/api/policy/preview/{ID}"] = (200, status("done", result=RESULT))
    said = helios(
        "policy", "preview", "--set", "terminal_value=1", "--minutes", "30", "--sweep", "terminal_value=1,2",
        "--server", control.url,
    ).stdout  # fmt: skip
    assert "draft: terminal_value 256.0 -> 1.0" in said
    assert "-50.0 %" in said
    assert "more than 10 % off" in said
    assert "the draft" in said
    assert "- A note." in said
    method, path, _, body = control.calls[0]
    assert (method, path) == ("POST", "/api/policy/preview")
    assert body["coefficients"] == {"terminal_value": 1}
    assert (body["minutes"], body["sweep"], body["seed"]) == (30.0, {"terminal_value": [1, 2]}, 0)


def test_json_is_what_the_server_said(helios, control):
    done = status("done", result=RESULT)
    control.answers["POST", "/api/policy/preview"] = (202, done)
    said = helios("policy", "preview", "--preset", "throughput", "--server", control.url, "--json").stdout
    assert json.loads(said) == done


def test_one_that_failed_and_wrong_usage_say_why(helios, control):
    control.answers["POST", "/api/policy/preview"] = (202, status("failed", message="Nothing was recorded."))
    failed = helios("policy", "preview", "--preset", "balanced", "--server", control.url)
    assert (failed.exit_code, "Nothing was recorded." in failed.stderr) == (1, True)
    assert "there is no draft" in helios("policy", "preview", "--server", control.url).stderr
    bad = ("--sweep", "terminal_value=x", "--sweep", "nothing=1", "--sweep", "terminal_value=1")
    said = helios("policy", "preview", *bad, "--server", control.url).stderr
    assert all(words in said for words in ("terminal_value must be", "'nothing=1' is not", "given twice"))
