"""Requests to a server of the tiny model, which never ends an answer by itself."""

from __future__ import annotations

MODEL_OPTIONS = ("--threads", "1", "--max-context", "8192", "--kv-pages", "2048", "--model")


def model_of(helios):
    return helios.client().models.list().data[0].id


def long_stream(helios, max_tokens=8000):
    return helios.client().completions.create(
        model=model_of(helios), prompt="once upon a time", max_tokens=max_tokens, stream=True, temperature=1.0, seed=1
    )


def take(stream, count):
    return [next(iter(stream)) for _ in range(count)]


def quiet(helios):
    """Nothing runs, waits or holds a page; a cancelled request's pages are free once the graph it was in has ended."""
    gauges = ("flare_requests_running", "flare_requests_waiting", "flare_kv_pages_used")
    return all(helios.metric(name) == 0 for name in gauges)


def open_raw_stream(helios, client):
    body = {"model": model_of(helios), "prompt": "once upon a time", "max_tokens": 8000, "stream": True}
    return client.stream("POST", f"{helios.base}/v1/completions", json=body, timeout=60)
