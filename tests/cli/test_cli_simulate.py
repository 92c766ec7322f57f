"""`helios simulate`: what it prints and writes, and what it says about a user's mistakes."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from recorded_traffic import record

from scheduler.policy import PolicyConfig

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,3
prefill,1,0,0,256,256,6
decode,1,0,1,1,0,5
decode,4,0,1,4,0,5.4
speculative,1,3,4,4,0,8
speculative,4,3,4,16,0,9
"""
ARRIVALS = "time_s,prompt_tokens,output_tokens\n0,100,5\n0.01,300,8\n0.2,50,1\n"
ACCEPTANCE = "target,dataset,fit_p1,fit_q\nLlama,chat,0.8,0.6\nLlama,math,0.9,0.9\n"


@pytest.fixture
def files(tmp_path):
    for name, text in (("catalog", CATALOG), ("arrivals", ARRIVALS), ("acceptance", ACCEPTANCE)):
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


@pytest.fixture
def simulate(helios, files):
    def run(*arguments: object):
        return helios(
            "simulate",
            "--arrivals",
            files / "arrivals.csv",
            "--catalog",
            files / "catalog.csv",
            "--slots",
            4,
            *arguments,
        )

    return run


@pytest.mark.parametrize("policy", ["balanced", "throughput", "budget:64", "prefill_first"])
def test_the_json_has_inputs_and_figures_and_is_the_same_each_time(simulate, policy):
    first, second = (simulate("--policy", policy, "--json") for _ in range(2))
    assert first.exit_code == 0, first.stderr
    assert first.stdout == second.stdout
    document = json.loads(first.stdout)
    assert document["results"]["requests"] == {"finished": 3, "refused": 0, "truncated": 0, "left": 0}
    assert document["inputs"]["arrivals"]["file"] == "arrivals.csv"
    assert document["results"]["throughput"]["output_tokens_per_s"] > 0
    assert "wall" not in first.stdout


def test_the_order_of_options_makes_no_difference(simulate):
    options = ("--seed", 3), ("--noise", 0.1), ("--requests", 2)
    forth, back = (simulate("--json", *sum(order, ())).stdout for order in (options, options[::-1]))
    assert forth == back


def test_the_table_shows_latencies_launches_and_the_speed_of_planning(simulate):
    result = simulate("--ttft-limit-ms", "10000")
    assert result.exit_code == 0, result.stderr
    for words in ("time to first token, ms", "gap between outputs, ms", "good requests/s", "prefill", "plans in"):
        assert words in result.stdout
    assert "2 of another mode or depth" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("options", "policy", "limits"),
    [
        ((), "policy: balanced", "limits: 4 request slots, 2 frames in flight, 131,072 tokens of context"),
        (
            ("--policy", "budget:64", "--max-context", 2048, "--gap-limit-ms", 50),
            "policy: budget:64, a baseline",
            "limits: 4 request slots, 1 frame in flight, 2,048 tokens of context, gaps within 50 ms",
        ),
        (
            ("--policy", "throughput", "--newcomer-memory", "phase", "--ttft-limit-ms", "200.5"),
            "policy: balanced with delivery_fairness=0.0, decode_age_price=0.0, newcomer_memory=phase",
            "limits: 4 request slots, 2 frames in flight, 131,072 tokens of context, first token within 200.5 ms",
        ),
    ],
)
def test_the_text_says_which_policy_and_limits_it_ran_with(simulate, options, policy, limits):
    lines = simulate(*options).stdout.splitlines()
    assert lines[:3] == [policy, limits, ""]


def test_the_results_are_written_where_asked(simulate, files):
    result = simulate("--out", files / "new" / "run", "--json")
    written = (files / "new" / "run" / "simulation.json").read_text()
    assert json.loads(written) == json.loads(result.stdout)
    lines = (files / "new" / "run" / "requests.csv").read_text().splitlines()
    assert lines[0].startswith("index,client,prompt_tokens,cached_tokens,output_tokens,arrived_ns")
    assert len(lines) == 4


def test_a_rate_scale_and_a_number_of_requests_are_applied(simulate):
    whole = json.loads(simulate("--json").stdout)["results"]
    part = json.loads(simulate("--requests", 2, "--json").stdout)["results"]
    fast = json.loads(simulate("--rate-scale", 10, "--json").stdout)["results"]
    assert (whole["requests"]["finished"], part["requests"]["finished"]) == (3, 2)
    assert fast["span_ms"] < whole["span_ms"]


def test_fixed_speculation_uses_the_acceptance_file(simulate, files):
    options = ("--policy", "fixed:4", "--acceptance", files / "acceptance.csv", "--json")
    document = json.loads(simulate(*options).stdout)
    assert document["inputs"]["survival"]["source"] == "Llama, chat"
    assert document["results"]["speculation"]["offered_tokens"] > 0
    other = json.loads(simulate(*options, "--acceptance-row", "MATH").stdout)
    assert other["inputs"]["survival"]["probabilities"][0] == 0.9


def test_a_policy_file_and_a_newcomer_memory_are_used(simulate, files):
    (files / "mine.json").write_text('{"coefficients": {"token_fairness": 3}}')
    result = simulate("--policy", files / "mine.json", "--newcomer-memory", "phase", "--json")
    policy = json.loads(result.stdout)["inputs"]["policy"]
    assert (policy["token_fairness"], policy["newcomer_memory"]) == (3, "phase")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "quick"), "'quick' is no policy and no file; policies are balanced, interactive, throughput"),
        (("--policy", "budget:0"), "budget:0: the number must be at least 1"),
        (("--policy", "fixed:4"), "speculation needs an acceptance file: --acceptance FILE"),
        (("--draft-tokens", "3"), "speculation needs an acceptance file: --acceptance FILE"),
        (("--acceptance-row", "chat"), "--acceptance-row is about drafts, which need --acceptance FILE"),
        (("--allocation", "host"), "--allocation is about drafts, which need --acceptance FILE"),
        (("--heterogeneity", "1"), "--heterogeneity is about drafts, which need --acceptance FILE"),
        (("--confidence-spread", "1"), "--confidence-spread is about drafts, which need --acceptance FILE"),
        (("--policy", "budget:64", "--newcomer-memory", "phase"), "keeps no service history"),
        (("--rate-scale", "0"), "the rate scale is 0; it must be a finite number above 0"),
        (("--rate-scale", "nan"), "the rate scale is nan"),
        (("--wrong-capture", "decode:B9"), "the wrong capture 'decode:B9' is not loaded"),
        (("--rate-scale", "1e-300"), "line 3: time_s is '0.01'; it must be at most 1e+09 s when divided by the rate"),
        (("--noise", "nan"), "Invalid value for '--noise': nan is not a finite number"),
        (("--noise", "3"), "'--noise': 3.0 is not in the range 0<=x<=2"),
        (("--drift", "1"), "'--drift': 1.0 is not in the range 0<=x<=0.9"),
        (("--host-ms", "2e6"), "'--host-ms': 2000000.0 is not in the range 0<=x<=1000000.0"),
        (("--ttft-limit-ms", "nan"), "'--ttft-limit-ms': nan is not a finite number"),
        (("--gap-limit-ms", "1e999"), "'--gap-limit-ms': 1e999 is not a finite number"),
    ],
)
def test_a_users_mistake_ends_in_one_line(simulate, arguments, words):
    result = simulate(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("helios simulate: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("arrivals", "", "arrivals.csv is empty; it needs the columns time_s, prompt_tokens, output_tokens"),
        ("arrivals", "time_s,prompt_tokens\n0,1\n", "arrivals.csv lacks the column output_tokens"),
        ("arrivals", "time_s,prompt_tokens,output_tokens\n0,-1,1\n", "arrivals.csv, line 2: prompt_tokens is '-1'"),
        ("arrivals", "time_s,prompt_tokens,output_tokens\n1e300,1,1\n", "arrivals.csv, line 2: time_s is '1e300'"),
        ("catalog", CATALOG.replace("5.4", "4e6"), "line 5: duration_ms is '4e6'; it must be a finite number of at"),
        ("catalog", "kind,B\nprefill,1\n", "catalog.csv lacks the columns D, W, P, prefill_capacity, duration_ms"),
        ("catalog", CATALOG.replace("5.4", "-5"), "catalog.csv, line 5: duration_ms is '-5'"),
        ("catalog", CATALOG.partition("decode")[0], "nothing can be generated"),
    ],
)
def test_a_malformed_file_ends_in_one_line_that_names_the_place(simulate, files, name, text, words):
    (files / f"{name}.csv").write_text(text)
    result = simulate()
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["{", '{"speed": 1}', "[]", b"\xff\xfe"])
def test_a_file_that_is_no_policy_ends_in_one_line(simulate, files, content):
    path = files / "mine.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = simulate("--policy", path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_a_folder_that_cannot_be_made_ends_in_one_line_before_anything_is_simulated(simulate, files, monkeypatch):
    monkeypatch.setattr("scheduler.simulation.experiment.simulate", None)
    (files / "taken").write_text("")
    result = simulate("--out", files / "taken" / "run")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"--out {files / 'taken' / 'run'} cannot be written to: Not a directory" in result.stderr


def test_a_terminal_sees_a_progress_bar_on_standard_error_only(simulate, monkeypatch):
    piped = simulate("--policy", "budget:64")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    shown = simulate("--policy", "budget:64")
    assert "simulating" not in piped.stderr
    assert "simulating" in shown.stderr
    assert "simulating" not in shown.stdout


@pytest.mark.parametrize(("policy", "said"), [("balanced", 1), ("budget:64", 0)])
def test_whoever_must_wait_for_the_kernels_is_told_so(simulate, monkeypatch, policy, said):
    monkeypatch.setattr("service.cli.output.kernels_are_cached", lambda: False)
    result = simulate("--policy", policy)
    assert result.exit_code == 0
    assert result.stderr.count("helios simulate: compiling the scheduler's kernels, once") == said


def test_recorded_traffic_is_replayed_beside_what_happened(helios, store):
    truth = record(store, seconds=5)
    address = ("--from-database", store.url.database)
    said = json.loads(helios("simulate", *address, "--policy", "throughput", "--seed", "2", "--json").stdout)
    assert said["inputs"]["policy"]["decode_age_price"] == 0.0
    assert said["recorded"]["completed"] == said["results"]["completed"] == len(truth.workload.arrivals)
    assert "ttft_p50_ms" in {error["name"] for error in said["against_recorded"]}
    budget = helios("simulate", *address, "--policy", "budget:96", "--newcomer-memory", "phase", "--json").stdout
    assert json.loads(budget)["inputs"]["policy"] == PolicyConfig(token_budget=96, newcomer_memory="phase").as_dict()
    since = (truth.until - dt.timedelta(seconds=2)).isoformat()
    window = ("--since", since, "--until", truth.until.isoformat(), "--policy", "budget:96")
    table = helios("simulate", *address, *window).stdout
    assert "happened" in table
    assert "simulated under the policy budget:96, seed 0" in table
    assert "first token, p50 ms" in table


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from-database", "none.db"), "none.db"),
        (("--from-database", "none.db", "--noise", "0.1"), "--noise: recorded traffic says this itself"),
        (("--from-database", "none.db", "--policy", "prefill_first"), "other baselines need --arrivals and --catalog"),
        (("--from-database", "none.db", "--policy", "budget:0"), "or budget:N with N from 1 to 1,048,576"),
        (("--from-database", "none.db", "--policy", "3"), "'3' is no policy of a server and no file"),
        (("--from-database", "none.db", "--policy", "budget:512"), "none.db"),
        (("--since", "2026-01-01T00:00:00Z"), "needs --from-database"),
        ((), "--arrivals FILE is needed"),
    ],
)
def test_what_does_not_go_with_recorded_traffic_is_refused(helios, options, words):
    result = helios("simulate", *options)
    assert result.exit_code == 2
    assert words in result.stderr
