"""Train a target's draft head on the samples that gpu.training.generate stored, and write the head's file.

python -m gpu.training.draft_head --samples SCRATCH --model gpu/assets/byte-model --name byte-model \
    --output gpu/assets/draft-heads/byte-model.safetensors
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Mapping, Sequence

import torch
from safetensors.torch import save_file

from gpu.device import ModelError
from gpu.model.draft_head import DRAFT_TOKEN_IDS, FORMAT
from gpu.model.weights import open_source
from gpu.training.chat_tokenizer import smollm2_path
from gpu.training.draft_module import DraftModule
from gpu.training.draft_training import Recipe, StepReport, freeze_target, frequent_tokens, train
from gpu.training.optimisation import Rates
from gpu.training.samples import Sample, read_samples

_REPORTED_STEPS = 20


def weights_sha256(path: pathlib.Path) -> str:
    """The digest of a GGUF file, or of a checkpoint directory's one model.safetensors. Raises ModelError."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{file} is missing; a head is tied to one weight file by its digest")
    with file.open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()


def write_draft_head(
    module: DraftModule, draft_token_ids: torch.Tensor | None, metadata: Mapping[str, str], path: pathlib.Path
) -> None:
    """Write the head's file in bfloat16; `metadata` comes on top of the format's name and the head's extents."""
    config = module.config
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in module.state_dict().items()}
    if draft_token_ids is not None:
        tensors[DRAFT_TOKEN_IDS] = draft_token_ids
    extents = {
        "hidden_size": config.hidden_size,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
    }
    texts = {"format": FORMAT, **{name: str(value) for name, value in extents.items()}, **metadata}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata=texts)


def training_samples(directory: pathlib.Path) -> list[Sample]:
    """The samples that are not held out."""
    samples = [sample for sample in read_samples(directory) if not sample.is_held_out]
    print(f"{len(samples)} answers, {_answer_tokens(samples)} answer tokens", flush=True)
    return samples


def describe(recipe: Recipe, samples: Sequence[Sample]) -> str:
    """The recipe as one sentence for the file; `samples` are those of the last pass."""
    rates = recipe.rates
    return (
        f"{len(samples)} answers of {_answer_tokens(samples)} tokens that the target generated, "
        f"{recipe.steps} steps of at most {recipe.step_tokens} tokens, unrolled {recipe.depths} deep, "
        f"loss at {recipe.loss_share:g} of the positions: cross-entropy to the target's distribution "
        f"and binary cross-entropy of the confidence; Muon {rates.matrices:g}, AdamW {rates.others:g}, "
        f"weight decay {rates.weight_decay:g}, cosine schedule"
    )


def main() -> None:
    """Train and write; the file is also written every --save-every steps."""
    options = _options()
    torch.set_num_threads(1)
    path = options.model or smollm2_path()
    source = open_source(path)
    samples = training_samples(options.samples)
    ids = None
    if options.draft_vocabulary:
        ids = frequent_tokens(samples, source.config.vocab_size, options.draft_vocabulary)
    target = freeze_target(source, ids)
    torch.manual_seed(options.seed)
    module = DraftModule(dataclasses.replace(source.config, intermediate_size=options.intermediate_size))
    module.start_from_target(target.final_norm, samples[0].hidden)
    rates = Rates(options.matrix_rate, options.other_rate, weight_decay=0.05, warm_up_steps=20)
    recipe = Recipe(options.steps, options.step_tokens, options.depths, options.loss_share, options.seed, rates)
    metadata = {
        "target_name": options.name,
        "target_sha256": weights_sha256(path),
        "seed": str(options.seed),
        "figures": json.dumps({}),
    }
    recent: list[StepReport] = []

    def read() -> list[Sample]:
        samples[:] = training_samples(options.samples)
        return samples

    for report in train(module, target, read, recipe):
        recent.append(report)
        if len(recent) == _REPORTED_STEPS:
            _print(recent)
            recent.clear()
        if report.step % options.save_every == 0 or report.step == recipe.steps:
            texts = metadata | {"recipe": describe(recipe, samples)}
            write_draft_head(module, ids, texts, options.output)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, help="default: the installed SmolLM2")
    parser.add_argument("--name", required=True, help="the target's name in the file")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--intermediate-size", type=int, default=512)
    parser.add_argument("--draft-vocabulary", type=int, default=0, help="most frequent tokens; 0: all")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-tokens", type=int, default=2500)
    parser.add_argument("--depths", type=int, default=4)
    parser.add_argument("--loss-share", type=float, default=1.0)
    parser.add_argument("--matrix-rate", type=float, default=4e-3)
    parser.add_argument("--other-rate", type=float, default=3e-3)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261130)
    return parser.parse_args()


def _answer_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.token_ids.shape[0] - sample.prompt_tokens for sample in samples)


def _print(reports: list[StepReport]) -> None:
    entropies = torch.tensor([report.cross_entropy for report in reports]).mean(0).tolist()
    agreements = torch.tensor([report.agreement for report in reports]).mean(0).tolist()
    text = ", ".join(f"{e:.3f} nats {a:.3f} agree" for e, a in zip(entropies, agreements, strict=True))
    print(f"step {reports[-1].step}: {text}; CPU {time.process_time():.0f} s", flush=True)


if __name__ == "__main__":
    main()
