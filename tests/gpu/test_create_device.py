"""What create_device and the weight readers refuse, and the defaults that they choose."""

import hashlib
import json
import pathlib
import shutil

import pytest
import torch
from device_driver import round_of
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu import create_device
from gpu.device import DeviceUnavailable, InvalidSettings, ModelError
from gpu.draft_heads import choose_draft_head
from gpu.model.weights import open_source
from scheduler.shapes import GraphKind


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"device": "cuda"}, DeviceUnavailable, "--device cpu"),
        ({"dtype": "float64"}, InvalidSettings, "float32, bfloat16"),
        ({"threads": 0}, InvalidSettings, "threads"),
        ({"request_slots": 0}, InvalidSettings, "request_slots"),
        ({"max_context": 513}, InvalidSettings, "2 to 512"),
        ({"max_context": 1}, InvalidSettings, "2 to 512"),
        ({"kv_pages": 0}, InvalidSettings, "kv_pages"),
        ({"kv_pages": 2**40}, InvalidSettings, "room for"),
        ({"prefill_capacities": ()}, InvalidSettings, "at least one"),
        ({"decode_batches": (0, 1)}, InvalidSettings, "at least 1"),
        ({"decode_batches": ()}, InvalidSettings, "at least one"),
        ({"scored_capacities": (0,)}, InvalidSettings, "scored_capacities"),
        ({"snapshot_rows": -1}, InvalidSettings, r"0 \(no prefix cache\) or more"),
        ({"draft_tokens": 64}, InvalidSettings, "0 to 63"),
        ({"draft_tokens": 3, "speculative_token_capacity": 1}, InvalidSettings, "at least 2"),
        ({"allocation": "gpu"}, InvalidSettings, "none, host, device"),
        ({"allocation": "host"}, InvalidSettings, "set draft_tokens"),
        ({"allocation": "device", "draft_tokens": 3}, InvalidSettings, "no head is loaded"),
        ({"mixed": True, "decode_batches": (1,)}, InvalidSettings, "power of two from 2"),
        ({"draft_head": "/no/such/head", "draft_tokens": 3}, ModelError, "/no/such/head"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, error, message, tiny_checkpoint):
    with pytest.raises(error, match=message):
        create_device(tiny_checkpoint, **settings)


def test_defaults_follow_the_model(make_driver):
    limits = make_driver().device.limits
    assert (limits.context_tokens, limits.kv_pages, limits.page_tokens) == (512, 16 * 32, 16)
    assert (limits.vocab_size, limits.request_slots) == (257, 64)
    assert (limits.snapshot_rows, limits.draft_tokens, limits.learned_drafts) == (128, 0, False)


def test_every_second_prefill_capacity_scores_prompts_unless_said(make_driver):
    def scored(**settings):
        shapes = make_driver(prefill_capacities=(16, 256, 64), **settings).device.shapes
        return [shape.prefill_capacity for shape in shapes if shape.kind is GraphKind.SCORED_PREFILL]

    assert (scored(), scored(scored_capacities=(64, 16)), scored(scored_capacities=())) == ([16, 256], [16, 64], [])


def test_the_shipped_head_that_was_made_for_the_weights_is_chosen(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("gpu.draft_heads.SHIPPED", tmp_path)
    assert choose_draft_head("auto", tiny_checkpoint) is None
    weights = (tiny_checkpoint / "model.safetensors").read_bytes()
    (tmp_path / "a-damaged.safetensors").write_bytes(b"no head")
    for name, target in (("b-other", "0" * 64), ("c-fitting", hashlib.sha256(weights).hexdigest())):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors", metadata={"target_sha256": target})
    fitting = tmp_path / "c-fitting.safetensors"
    assert choose_draft_head("auto", tiny_checkpoint) == fitting
    assert choose_draft_head("auto", tiny_checkpoint / "model.safetensors") == fitting
    assert choose_draft_head("auto", tmp_path / "shards-only") is None
    assert [choose_draft_head(wanted, tiny_checkpoint) for wanted in (None, "none")] == [None, None]
    assert choose_draft_head("own/head", tiny_checkpoint) == pathlib.Path("own/head")


def test_a_head_is_loaded_only_to_draft(tiny_checkpoint, tmp_path, make_driver):
    write_tiny_draft_head(tmp_path / "head", open_source(tiny_checkpoint).config)
    drafting = make_driver(draft_head=tmp_path / "head", draft_tokens=3, allocation="device").device
    assert (drafting.limits.draft_tokens, drafting.limits.learned_drafts) == (3, True)
    plain = make_driver(draft_head=tmp_path / "head").device
    assert (plain.limits.draft_tokens, plain.limits.learned_drafts) == (0, False)


def test_drafts_beside_the_contexts_end_have_room(make_driver):
    driver = make_driver(max_context=32, draft_tokens=7, speculative_token_capacity=8)
    prompt = [1, 2, 3] * 8
    said = [driver.start(0, prompt, 8)]
    while len(said) < 8:
        count = min(driver.device.copy_proposals(0), 32 - len(prompt) - len(said))
        said += driver.run(round_of(1, count), (0, count + 1, True)).lanes[0].emitted_tokens
    assert said == make_driver(max_context=32).generate(0, prompt, 8)


def test_a_long_context_is_cut_to_2048_unless_asked_for(tmp_path, make_driver):
    write_tiny_checkpoint(tmp_path, max_position_embeddings=4096)
    assert make_driver(tmp_path).device.limits.context_tokens == 2048
    assert make_driver(tmp_path, max_context=4000).device.limits.context_tokens == 4000


def test_the_pool_takes_at_most_a_quarter_of_memory(monkeypatch, make_driver):
    page = 2 * 2 * 16 * 2 * 16 * 4  # keys and values, layers, tokens, key heads, head_dim, bytes
    monkeypatch.setattr("gpu.create._memory_bytes", lambda: 4 * 10 * page + 5)
    assert make_driver().device.limits.kv_pages == 10


def test_bfloat16_serves(make_driver):
    driver = make_driver(dtype="bfloat16")
    prompt = list(range(40))
    assert len(driver.generate(0, prompt, 6)) == 6
    for slot in range(8):
        driver.start(slot, prompt)
    assert len(driver.step(8, *range(8))) == 8


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def change_config(checkpoint, **changes):
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "'64'"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2"),
        ({"intermediate_size": 95}, "shape"),
        ({"tie_word_embeddings": False}, "lm_head.weight"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(changes, message, checkpoint):
    change_config(checkpoint, **changes)
    with pytest.raises(ModelError, match=message):
        create_device(checkpoint)


def test_rope_settings_of_older_checkpoints_are_read(checkpoint, make_driver, tiny_checkpoint):
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | {"rope_theta": 10000.0, "rope_scaling": None}))
    prompt = list(range(30))
    expected = make_driver(tiny_checkpoint).generate(0, prompt, 8)
    assert make_driver(checkpoint).generate(0, prompt, 8) == expected


def test_a_weight_file_that_is_cut_short_is_refused(checkpoint):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="download"):
        create_device(checkpoint)


def test_a_missing_shard_is_refused(tmp_path):
    write_tiny_checkpoint(tmp_path, max_shard_size="60KB")
    next(tmp_path.glob("model-00002*.safetensors")).unlink()
    with pytest.raises(ModelError, match=r"model-00002.*download"):
        create_device(tmp_path)


def test_whole_number_weights_are_refused(checkpoint):
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.norm\.weight is torch\.int8"):
        create_device(checkpoint)


@pytest.mark.parametrize("keep", [0, 3, 100, 5_000, 2_000_000, 50_000_000])
def test_a_gguf_file_that_is_cut_short_is_refused(keep, smollm2_path, tmp_path):
    cut = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as file:
        cut.write_bytes(file.read(keep))
    with pytest.raises(ModelError, match=r"cut\.gguf cannot be read"):
        create_device(cut)


def test_nothing_at_the_path_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no model"):
        create_device(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"config\.json"):
        create_device(tmp_path)
