"""Texts that cannot fit are refused before the tokenizer sees them, and the rest goes through a narrow gate."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_engine import CONTEXT, MODEL_TEXT, Api, ids, serving
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from service.api.context import TOKENIZE_THREADS
from service.api.prompts import MAX_TOKENIZE_BYTES
from service.store.database import open_database
from service.text import TextModel
from service.text.vocabulary import TokenTable

LONG = "x" * 3_000_000


def merging_model(**added: bool) -> TextModel:
    """A byte-level vocabulary with tokens of up to 4 bytes, a special token of 9, and no token for the byte 'q'."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"q"})
    vocabulary = {character: n for n, character in enumerate([*alphabet, "aa", "aaaa"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "a"), ("aa", "aa")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<special>", **added)])
    table = TokenTable(tokenizer)
    return TextModel("merging", tokenizer, table, None, (), None, False, len(table))


MERGING = merging_model()


@given(st.text(st.sampled_from("aqx é😀"), max_size=60) | st.integers(0, 9).map("<special>".__mul__))
def test_the_least_number_of_tokens_is_never_above_the_real_one(text):
    assert MERGING.least_tokens(text) <= len(MERGING.encode(text, add_special_tokens=True))


def test_the_least_number_of_tokens_is_reached_by_the_longest_token():
    assert MERGING.least_tokens("<special>" * 7) == 7
    assert MERGING.least_tokens("q" * 1_000) == 0
    assert MODEL_TEXT.least_tokens("x" * 55) == 11  # "<end>" is 5 bytes


def test_a_tokenizer_that_shortens_texts_gives_no_bound():
    normalizing = merging_model()
    normalizing.tokenizer.normalizer = normalizers.Strip()
    splitting = merging_model()
    splitting.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for model in (normalizing, splitting, merging_model(lstrip=True)):
        assert model.least_tokens(LONG) == 0


@pytest.fixture
def tokenized(monkeypatch) -> list[int]:
    """The length of every text that the tokenizer is given."""
    seen: list[int] = []
    encode = TextModel.encode

    def counted(self: TextModel, text: str, *, add_special_tokens: bool) -> list[int]:
        seen.append(len(text))
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(TextModel, "encode", counted)
    return seen


@pytest.mark.parametrize("text", [LONG, "é" * 1_000_000], ids=["ascii", "two bytes each"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(api: Api, tokenized, text):
    least = -(-len(text.encode()) // 5)
    for answer in (api.complete(prompt=text), api.complete(prompt=text, stream=True)):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
        assert f"at least {least:,}; shorten it to {CONTEXT - 1:,}" in error["message"]
    half = {"role": "user", "content": text[: len(text) // 2]}
    answer = api.chat(messages=[half, half])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "at least" in error["message"]
    assert tokenized == []
    assert api.engine.submits == []


def test_tokenize_has_a_limit_of_its_own_and_names_it(api: Api, tokenized):
    most = "x" * MAX_TOKENIZE_BYTES
    assert api.http.post("/v1/tokenize", json={"prompt": most}).json()["count"] == MAX_TOKENIZE_BYTES
    tokenized.clear()
    for body in ({"prompt": most + "x"}, {"messages": [{"role": "user", "content": most}]}):
        answer = api.http.post("/v1/tokenize", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "text_too_long")
        assert f"/v1/tokenize takes at most {MAX_TOKENIZE_BYTES:,} bytes" in answer.json()["error"]["message"]
    assert tokenized == []


@pytest.fixture
def small_api(_sqlite_template, tmp_path) -> Iterator[Api]:
    """A server that takes four requests."""
    shutil.copy(_sqlite_template, tmp_path / "helios.db")
    store = open_database(f"sqlite:///{tmp_path / 'helios.db'}")
    with serving(store, tmp_path, queue_limit=3, request_slots=1) as made:
        yield made
    store.dispose()


@dataclasses.dataclass
class Gate:
    """Holds every tokenization until it is opened, and knows the most that went on at once."""

    inside: threading.Semaphore = dataclasses.field(default_factory=lambda: threading.Semaphore(0))
    opened: threading.Event = dataclasses.field(default_factory=threading.Event)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    now: int = 0
    most: int = 0

    def encode(self, text: str) -> list[int]:
        if len(text) < 4_001:
            return ids(text)
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.inside.release()
        assert self.opened.wait(30)
        with self.lock:
            self.now -= 1
        return ids("tokenized")


def test_texts_being_tokenized_count_as_open_requests_and_few_run_at_once(small_api, monkeypatch):
    api, gate = small_api, Gate()
    monkeypatch.setattr(TextModel, "encode", lambda _self, text, **_options: gate.encode(text))
    with ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(api.complete, prompt="x" * 5_000),
            pool.submit(api.chat, messages=[{"role": "user", "content": "x" * 5_000}]),
            pool.submit(api.http.post, "/v1/tokenize", json={"prompt": "x" * 5_000}),
            pool.submit(api.complete, prompt="x" * 5_000, stream=True),
        ]
        for _ in range(TOKENIZE_THREADS):
            assert gate.inside.acquire(timeout=30)
        while api.app.state.context.tokenizing < 4:  # the rest wait for their turn
            api.http.get("/health/live")
        for answer in (api.complete(prompt="short"), api.http.post("/v1/tokenize", json={"prompt": "short"})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert int(answer.headers["retry-after"]) > 0
        assert api.complete(prompt=[1, 2]).status_code == 429
        gate.opened.set()
        assert [answer.result(30).status_code for answer in waiting] == [200] * 4
        assert gate.most == TOKENIZE_THREADS
        assert api.app.state.context.tokenizing == 0
        assert api.complete(prompt="short").status_code == 200
