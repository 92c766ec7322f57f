"""From a catalog and a model's tokenizer to a simulated device."""

from __future__ import annotations

import types

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from gpu.device import ModelError
from scheduler.shapes import GraphKind
from scheduler.simulation.errors import SimulationError
from service.engine.simulated import plain_tokens, simulated_device
from service.measurements import read_measurements
from service.model_source import ModelSource
from service.settings import Settings
from service.text.errors import TextModelError

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms,ctx
prefill,1,0,0,64,64,3,0
decode,1,0,1,1,0,5,0
decode,1,0,1,1,0,7,1000
decode,8,0,1,8,0,6,0
speculative,4,2,3,12,0,8,0
speculative,4,2,3,7,0,7,0
speculative,16,2,3,48,0,9,0
mixed,4,0,1,68,64,9,0
"""
ACCEPTANCE = "target,pos1,pos2\nany,0.7,0.5\n"


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "catalog.csv").write_text(CATALOG)
    (tmp_path / "acceptance.csv").write_text(ACCEPTANCE)

    def make(**changes):
        return Settings(
            data_dir=str(tmp_path),
            database="sqlite://",
            threads=1,
            device="simulated",
            catalog=str(tmp_path / "catalog.csv"),
            **changes,
        )

    return make


def labels(measurements):
    return [shape.label for shape in measurements.durations]


def test_times_follow_the_context_and_the_scale(settings):
    durations = read_measurements(settings(time_scale=0.1)).durations
    by_label = {shape.label: duration for shape, duration in durations.items()}
    assert list(by_label) == ["prefill:B1:C64", "decode:B1", "decode:B8"]
    assert [by_label["decode:B1"](context) for context in (0, 500, 1000)] == pytest.approx([0.5, 0.6, 0.7])
    assert by_label["decode:B8"](500) == pytest.approx(0.6)


def test_a_catalog_at_one_context_length_has_fixed_times(settings, tmp_path):
    rows = [line.rpartition(",")[0] for line in CATALOG.splitlines() if not line.endswith(",1000")]
    (tmp_path / "catalog.csv").write_text("\n".join(rows))
    durations = read_measurements(settings(time_scale=2)).durations
    assert [duration(77) for duration in durations.values()] == [6, 10, 12]


def test_the_usual_settings_say_which_graphs_are_prepared(settings, tmp_path):
    drafts = {"draft_tokens": 2, "acceptance": str(tmp_path / "acceptance.csv")}
    assert "mixed:B4:D0:W1:P4:C64" in labels(read_measurements(settings(mixed_prefill=True)))
    several = read_measurements(settings(mixed_prefill=True, mixed_prompt_rows=3)).durations
    (carrying,) = [shape for shape in several if shape.kind is GraphKind.MIXED]
    assert (carrying.label, several[carrying](0)) == ("mixed:B4:D0:W1:P4:C64:R3", 9)
    plain = labels(read_measurements(settings(**drafts)))
    assert {"speculative:B1:D0:W1:P1", "speculative:B4:D2:W3:P12"} < set(plain)
    assert not {"speculative:B4:D2:W3:P7", "speculative:B16:D2:W3:P48"} & set(plain)
    divided = read_measurements(settings(**drafts, draft_allocation="host", speculative_token_capacity=48))
    assert {"speculative:B4:D2:W3:P7", "speculative:B16:D2:W3:P48"} < set(labels(divided))


def test_acceptance_is_drawn_from_the_table_by_seed(settings, tmp_path):
    acceptance = read_measurements(settings(draft_tokens=2, acceptance=str(tmp_path / "acceptance.csv"))).acceptance
    assert acceptance.survival(3) == pytest.approx([0.7, 0.5])
    answers = [acceptance.accepted(seed, 500) for seed in range(40)]
    assert acceptance.accepted(7, 20) == answers[7][:21]
    assert acceptance.accepted((1 << 62) + 5, 500) == answers[5] != answers[6]
    drawn = np.frombuffer(b"".join(answers), dtype=np.uint8)
    assert [np.mean(drawn >= 1), np.mean(drawn >= 2)] == pytest.approx([0.7, 0.5], abs=0.02)


def test_files_that_changed_since_the_command_line_was_read_say_so(settings, tmp_path):
    (tmp_path / "catalog.csv").unlink()
    with pytest.raises(SimulationError, match=r"catalog\.csv cannot be read: No such file"):
        read_measurements(settings())
    (tmp_path / "catalog.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(SimulationError, match="is not UTF-8 text"):
        read_measurements(settings())


def test_a_device_has_the_catalogs_programs_and_the_models_sizes(settings, tmp_path, monkeypatch):
    write_tiny_checkpoint(tmp_path)
    table = TokenTable({0: b"", 1: b"a", 2: b"end", 3: b"bc"})
    text = types.SimpleNamespace(table=table, stop_token_ids=(2,))
    monkeypatch.setattr("service.engine.simulated.load_text_model", lambda source: text)
    source = ModelSource("tiny", tmp_path, "huggingface")
    device = simulated_device(settings(request_slots=2, max_context=40, kv_pages=7), source)
    try:
        assert {shape.kind for shape in device.shapes} == {GraphKind.PREFILL, GraphKind.DECODE}
        assert (device.limits.request_slots, device.limits.context_tokens, device.limits.kv_pages) == (2, 40, 7)
        assert device.limits.draft_tokens == device.limits.snapshot_rows == 0
    finally:
        device.shut_down(abandon=False)


def test_a_tokenizer_that_cannot_be_read_is_a_fault_of_the_model(settings, tmp_path, monkeypatch):
    def broken(source):
        raise TextModelError("tokenizer.json cannot be read")

    monkeypatch.setattr("service.engine.simulated.load_text_model", broken)
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        simulated_device(settings(), ModelSource("tiny", tmp_path, "huggingface"))


class TokenTable:
    """Token bytes; an empty one is special."""

    def __init__(self, tokens):
        self._tokens = tokens

    def __len__(self):
        return len(self._tokens)

    def bytes_of(self, token_id):
        return self._tokens[token_id]

    def is_special(self, token_id):
        return not self._tokens[token_id]


def test_answers_are_made_of_tokens_that_are_text_by_themselves():
    tokens = [b"", b" the", b"\xe2\x82", "é".encode(), b"\n", b" ", b"\x07", b"stop", b"x"]
    text = types.SimpleNamespace(table=TokenTable(dict(enumerate(tokens))), stop_token_ids=(7,))
    assert plain_tokens(text) == [1, 3, 8]
