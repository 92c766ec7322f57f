"""Logits agree with transformers on the same weights, for every kind of checkpoint, and with the reference twin."""

import pathlib

import pytest
import torch
from program_host import ProgramHost
from tiny_checkpoint import write_tiny_checkpoint
from transformers import LlamaForCausalLM

from benchmarks.serve_peers import load_transformers
from gpu.model.weights import load_model, open_source
from gpu.reference.forward import sequence_logits

PROMPT = [5, 200, 13, 13, 77, 250, 1, 0, 99, 31, 62, 128, 3, 17, 42, 42, 180, 7, 55, 201, 90, 11]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "tied, grouped query heads": {},
    "untied": {"tie_word_embeddings": False},
    "one query head per key head": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "another theta and head_dim": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "head_dim": 32},
    "shards": {"max_shard_size": "60KB"},
    "bfloat16 file": {"dtype": torch.bfloat16},
    "float16 file": {"dtype": torch.float16},
}


def last_logits(path: pathlib.Path, prompt: list[int], dtype=torch.float32) -> torch.Tensor:
    source = open_source(path)
    model = load_model(source, dtype, context_tokens=512)
    host = ProgramHost(model)
    host.open(0, prompt)
    return torch.from_numpy(host.prefill(0))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_checkpoint_has_the_logits_of_transformers(changes, tmp_path):
    write_tiny_checkpoint(tmp_path, seed=3, **changes)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    assert relative_error(last_logits(tmp_path, PROMPT), expected[-1]) < 1e-4
    assert relative_error(sequence_logits(open_source(tmp_path), PROMPT), expected) < 1e-4


def test_llama3_rope_and_theta_matter_to_these_logits(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "a", seed=3)
    write_tiny_checkpoint(tmp_path / "b", seed=3, rope_parameters=LLAMA3)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0, -1]
    assert relative_error(last_logits(tmp_path / "b", PROMPT), expected) > 1e-3


def test_bfloat16_stays_near_float32(tiny_checkpoint):
    exact, rounded = last_logits(tiny_checkpoint, PROMPT), last_logits(tiny_checkpoint, PROMPT, torch.bfloat16)
    assert 1e-5 < relative_error(rounded, exact) < 0.1


def test_smollm2_has_the_logits_of_transformers(smollm2_path):
    twin = load_transformers(smollm2_path, torch.float32)
    prompt = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    with torch.inference_mode():
        expected = twin(torch.tensor([prompt])).logits[0, -1]
    actual = last_logits(smollm2_path, prompt)
    assert relative_error(actual, expected) < 1e-4
    assert int(actual.argmax()) == int(expected.argmax())
