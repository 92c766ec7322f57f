"""Train the byte-level model on a text file and write it as a Hugging Face checkpoint directory.

python -m gpu.training.byte_model --text tinyshakespeare.txt --output gpu/assets/byte-model
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file

from gpu.model.config import ModelConfig
from gpu.training.byte_tokenizer import END_ID, write_byte_tokenizer
from gpu.training.modules import LlamaModel
from gpu.training.optimisation import Optimiser, Rates

HELD_OUT_SHARE = 0.05
_RATES = Rates(matrices=6e-3, others=4e-3, weight_decay=0.1, warm_up_steps=30)
_WINDOWS = ((0.80, 128), (0.92, 512), (1.0, 1024))  # up to this share of the steps, windows of so many tokens
_EVALUATED_WINDOWS, _EVALUATED_TOKENS = 24, 512


BYTE_MODEL = ModelConfig(  # 1.6 million parameters: 256 bytes and an end token that the training text never has
    vocab_size=END_ID + 1,
    hidden_size=192,
    intermediate_size=512,
    layers=4,
    heads=6,
    kv_heads=2,
    head_dim=32,
    context_tokens=1024,
    norm_epsilon=1e-5,
    rope_theta=10000.0,
    tied_embeddings=True,
)


def split_text(path: pathlib.Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The file's bytes as token ids, int64: those to train on, and the last 5 %, which are held out."""
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
    cut = math.floor(len(data) * (1 - HELD_OUT_SHARE))
    return data[:cut], data[cut:]


def train_byte_model(
    text: torch.Tensor, config: ModelConfig, *, steps: int, step_tokens: int, seed: int
) -> Iterator[tuple[int, float, LlamaModel]]:
    """Train on random windows of `text` and yield (step, loss in nats per byte, model) after each step.

    Most steps see short windows, which cost least; the last see the whole context, so that late positions are trained.
    """
    torch.manual_seed(seed)
    model = LlamaModel(config)
    optimiser = Optimiser(model, _RATES, steps, adam_names=("embed_tokens",))
    for step in range(steps):
        planned = next(tokens for share, tokens in _WINDOWS if step < steps * share)
        window = min(planned, config.context_tokens, step_tokens, len(text) - 1)
        starts = torch.randint(len(text) - window, (max(1, step_tokens // window),))
        loss = _loss(model, torch.stack([text[start : start + window + 1] for start in starts.tolist()]))
        optimiser.step(loss)
        yield step + 1, float(loss.detach()), model


@torch.no_grad()
def held_out_loss(model: LlamaModel, text: torch.Tensor) -> float:
    """Nats per byte over evenly spread windows of `text`."""
    window = min(_EVALUATED_TOKENS, model.config.context_tokens, len(text) - 1)
    starts = torch.linspace(0, len(text) - window - 1, _EVALUATED_WINDOWS).long().tolist()
    losses = [_loss(model, text[start : start + window + 1].unsqueeze(0)) for start in starts]
    return float(torch.stack(losses).mean())


def write_checkpoint(model: LlamaModel, directory: pathlib.Path) -> None:
    """Write config.json, model.safetensors in bfloat16, and the tokenizer's files."""
    directory.mkdir(parents=True, exist_ok=True)
    config = model.config
    tensors = {f"model.{name}": value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_tokens,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    write_byte_tokenizer(directory)


def round_weights(model: LlamaModel) -> None:
    """Round every weight to bfloat16, as the file holds it, so that figures are those of the file."""
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


def _loss(model: LlamaModel, windows: torch.Tensor) -> torch.Tensor:
    """Nats per byte of windows [batch, tokens + 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(windows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def main() -> None:
    """Train, print progress, write the checkpoint and print the held-out figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=420)
    parser.add_argument("--step-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=20261130)
    options = parser.parse_args()
    torch.set_num_threads(1)
    training, held_out = split_text(options.text)
    model = None
    for step, loss, model in train_byte_model(  # noqa: B007 - the last model is written
        training, BYTE_MODEL, steps=options.steps, step_tokens=options.step_tokens, seed=options.seed
    ):
        if step % 20 == 0:
            print(f"step {step} loss {loss:.3f} nats per byte, {time.process_time():.0f} s of CPU time", flush=True)
    if model is None:
        raise SystemExit("--steps must be at least 1")
    round_weights(model)
    write_checkpoint(model, options.output)
    nats = held_out_loss(model, held_out)
    print(f"held out: {nats:.4f} nats per byte, {nats / math.log(2):.4f} bits per byte")


if __name__ == "__main__":
    main()
