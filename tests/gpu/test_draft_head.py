"""Draft heads: the file, its refusals, and that serving computes what training trained."""

import dataclasses

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_checkpoint import write_tiny_checkpoint

from gpu.device import ModelError
from gpu.model.draft_head import (
    FORMAT,
    confidence,
    draft_head_shapes,
    draft_inputs,
    draft_layer,
    draft_logits,
    load_draft_head,
    output_rows,
)
from gpu.model.source import EMBEDDING, OUTPUT_HEAD
from gpu.model.weights import load_model, open_source
from gpu.training.draft_module import DraftModule
from gpu.training.head_files import write_draft_head
from gpu.training.modules import LlamaModel
from gpu.training.sequences import SequenceBatch

INNER = 48
IDS = torch.tensor([1, 5, 9, 200, 256])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("target")
    write_tiny_checkpoint(directory)
    return open_source(directory)


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, torch.float32, 64)


@pytest.fixture
def module(source):
    """A random head whose every weight is exact in bfloat16, and moves its outputs."""
    torch.manual_seed(1)
    module = DraftModule(dataclasses.replace(source.config, intermediate_size=INNER))
    for parameter in module.parameters():
        spread = torch.randn_like(parameter) * (0.2 if parameter.dim() == 2 else 0.3)
        parameter.data = (spread + (parameter.dim() == 1)).bfloat16().float()
    return module


@pytest.fixture
def head_path(module, tmp_path):
    path = tmp_path / "head.safetensors"
    write_draft_head(module, IDS, {"target_name": "tiny", "target_sha256": "ab", "seed": "1"}, path)
    return path


def rewrite(path, change_tensors=lambda tensors: None, **metadata):
    """Change a head's file; a metadata value of None removes it."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        texts = {k: v for k, v in (file.metadata() | metadata).items() if v is not None}
    change_tensors(tensors)
    save_file(tensors, path, metadata=texts)


def test_a_written_head_is_read_back(head_path, module, model):
    head = load_draft_head(head_path, model, target_sha256="ab")
    assert dataclasses.asdict(head.config) == {
        "target_name": "tiny",
        "target_sha256": "ab",
        "hidden_size": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": INNER,
        "draft_vocab_size": len(IDS),
        "norm_epsilon": model.config.norm_epsilon,
    }
    assert torch.equal(head.draft_token_ids, IDS)
    assert torch.equal(head.hidden_norm, module.hidden_norm.weight)
    assert torch.equal(head.confidence_weight, module.confidence.weight)
    x = torch.eye(64)
    assert torch.allclose(head.output(x).T, output_rows(model, IDS))
    assert torch.allclose(head.down(torch.eye(INNER)).T, module.layer.mlp.down_proj.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [True, False])
def test_output_rows_are_the_targets_own(dtype, is_tied, tmp_path):
    write_tiny_checkpoint(tmp_path, tie_word_embeddings=is_tied)
    source = open_source(tmp_path)
    rows = output_rows(load_model(source, dtype, 64), IDS)
    assert torch.equal(rows, source.tensor(EMBEDDING if is_tied else OUTPUT_HEAD)[IDS].to(dtype))
    assert rows.is_contiguous()


def test_a_head_without_token_ids_drafts_every_token(module, model, tmp_path):
    write_draft_head(module, None, {}, tmp_path / "all.safetensors")
    head = load_draft_head(tmp_path / "all.safetensors", model)
    assert head.draft_token_ids is None
    assert head.config.draft_vocab_size == 257
    g = torch.randn(3, 64)
    n, scores = draft_logits(head, model, g)
    assert torch.allclose(scores, n @ output_rows(model, torch.arange(257)).T, atol=1e-5)


def test_serving_computes_what_training_trained(head_path, module, model, source):
    """Entries one by one over a KV cache equal the unrolled pass over the whole sequence, at every depth."""
    torch.manual_seed(2)
    head, depths, tokens = load_draft_head(head_path, model), 4, 12
    ids = torch.randint(257, (1, tokens))
    sequences, row = SequenceBatch(model, 1, tokens), torch.tensor([0])
    with torch.inference_mode():
        hidden = sequences.run(row, ids, torch.arange(tokens)[None])
        embeddings = source.tensor(EMBEDDING)[ids[:, 1:]]
        unrolled = module(hidden[:, :-1], embeddings, (model.cosines, model.sines), depths)
        for start in range(tokens - depths):
            sequences = SequenceBatch(model, 1, tokens)
            if start:
                before = torch.arange(start)[None]
                sequences.draft(head, row, hidden[:, :start], ids[:, 1 : start + 1], before)
            state = hidden[:, start : start + 1]
            for depth in range(depths):
                entry = start + depth
                state = sequences.draft(head, row, state, ids[:, entry + 1 : entry + 2], torch.tensor([[entry]]))
                assert torch.allclose(state[0, 0], unrolled[depth][0, entry], atol=2e-4), (start, depth)
        n, scores = draft_logits(head, model, state[0])
        assert torch.allclose(n, module.final_norm(state[0]), atol=1e-5)
        assert torch.allclose(scores, n @ output_rows(model, IDS).T, atol=1e-5)
        log_q = scores.log_softmax(-1)[:, 0]
        assert torch.allclose(confidence(head, n, log_q), module.confidence(n, log_q).sigmoid())


def test_the_chain_matters_to_these_outputs(module, model):
    """The comparison above would notice a chain that is attended to wrongly."""
    torch.manual_seed(3)
    hidden, embeddings = torch.randn(1, 6, 64), torch.randn(1, 6, 64)
    tables = (model.cosines, model.sines)
    with torch.inference_mode():
        outputs = module(hidden, embeddings, tables, 3)
        moved = embeddings.clone()
        moved[0, 1] += 1.0
        changed = module(hidden, moved, tables, 3)
    assert not torch.allclose(outputs[2][0, 3], changed[2][0, 3], atol=1e-3)  # entry 1 begins the chain to entry 3
    assert torch.allclose(outputs[0][0, 0], changed[0][0, 0])


def test_draft_layer_uses_the_layer_index_after_the_targets(head_path, model):
    head, seen = load_draft_head(head_path, model), []

    def attend(layer, query, key, value):
        seen.append((layer, tuple(query.shape), tuple(key.shape), tuple(value.shape)))
        return query.reshape(3, -1)

    u = draft_inputs(head, torch.randn(3, 64), torch.randn(3, 64))
    draft_layer(head, model, u, torch.arange(3), attend)
    assert seen == [(2, (3, 4, 16), (3, 32), (3, 32))]


def test_bfloat16_heads_run_in_bfloat16(head_path, source):
    model = load_model(source, torch.bfloat16, 64)
    head = load_draft_head(head_path, model)
    u = draft_inputs(head, torch.randn(2, 64).bfloat16(), torch.randn(2, 64).bfloat16())
    assert u.dtype == torch.bfloat16
    n, scores = draft_logits(head, model, u)
    assert scores.dtype == torch.float32
    assert confidence(head, n, torch.zeros(2)).dtype == torch.float32


def refused(path, model, match, **options):
    with pytest.raises(ModelError, match=match):
        load_draft_head(path, model, **options)


def test_a_head_of_another_target_is_refused(head_path, model):
    refused(head_path, model, "made for the weights with sha256 ab", target_sha256="cd")
    for name in ("hidden_size", "heads", "kv_heads", "head_dim"):
        original = {"hidden_size": "64", "heads": "4", "kv_heads": "2", "head_dim": "16"}[name]
        rewrite(head_path, **{name: "8"})
        refused(head_path, model, f"made for another target: its {name} is 8")
        rewrite(head_path, **{name: original})
    assert load_draft_head(head_path, model)


@pytest.mark.parametrize("value", [None, "", "-1", "many"])
def test_metadata_that_is_no_number_is_refused(head_path, model, value):
    rewrite(head_path, intermediate_size=value)
    refused(head_path, model, "intermediate_size")


def test_a_file_that_is_no_draft_head_is_refused(head_path, model, tmp_path):
    refused(tmp_path / "nothing", model, "cannot be read")
    (tmp_path / "text").write_text("no safetensors")
    refused(tmp_path / "text", model, "cannot be read")
    rewrite(head_path, format="helios-draft-head-0")
    refused(head_path, model, FORMAT)
    save_file({"x": torch.zeros(1)}, tmp_path / "bare")
    refused(tmp_path / "bare", model, FORMAT)


@pytest.mark.parametrize("name", sorted(draft_head_shapes(64, 64, 32, INNER)))
def test_every_tensor_must_be_there_in_its_shape(name, head_path, model):
    rewrite(head_path, lambda tensors: tensors.update({name: tensors[name][:-1].clone()}))
    refused(head_path, model, f"{name} has the shape")
    rewrite(head_path, lambda tensors: tensors.pop(name))
    refused(head_path, model, f"lacks the tensor {name}")


@pytest.mark.parametrize(
    "ids",
    [[5, 1], [1, 1], [-1, 3], [1, 257], [], [[1]]],
    ids=["descending", "twice", "negative", "outside", "none", "table"],
)
def test_bad_token_ids_are_refused(ids, head_path, model):
    rewrite(head_path, lambda tensors: tensors.update(draft_token_ids=torch.tensor(ids, dtype=torch.int64)))
    refused(head_path, model, "draft_token_ids")


def test_integer_weights_are_refused(head_path, model):
    rewrite(head_path, lambda tensors: tensors.update({"fuse.weight": torch.zeros(64, 128, dtype=torch.int8)}))
    refused(head_path, model, "floating-point")


def test_the_trainable_model_has_the_loaded_models_logits(source, tmp_path):
    """Training's own Llama layers are those of serving."""
    twin = LlamaModel(source.config)
    names = {name: source.tensor(f"model.{name}") for name in twin.state_dict()}
    twin.load_state_dict(names)
    model = load_model(source, torch.float32, 64)
    ids = torch.randint(257, (2, 9), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        hidden = SequenceBatch(model, 2, 9).run(torch.arange(2), ids, torch.arange(9).expand(2, -1).contiguous())
        normed = torch.nn.functional.rms_norm(hidden, (64,), model.final_norm, model.config.norm_epsilon)
        expected = normed @ source.tensor(EMBEDDING).T
        assert torch.allclose(twin(ids), expected, atol=1e-3 * float(expected.abs().max()))
