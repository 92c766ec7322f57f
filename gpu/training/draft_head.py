"""Train a target's draft head on the samples that gpu.training.generate stored, and write the head's file.

python -m gpu.training.draft_head --samples SCRATCH --model gpu/assets/byte-model --name byte-model \
    --output gpu/assets/draft-heads/byte-model.safetensors
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Sequence

import torch

from gpu.model.source import FINAL_NORM, WeightSource
from gpu.model.weights import open_source
from gpu.training.chat_tokenizer import smollm2_path
from gpu.training.draft_module import DraftModule
from gpu.training.draft_training import Recipe, StepReport, freeze_target, frequent_tokens, train
from gpu.training.head_files import read_draft_module, read_metadata, weights_sha256, write_draft_head
from gpu.training.optimisation import Rates
from gpu.training.samples import Sample, read_samples

_REPORTED_STEPS = 20


def training_samples(directory: pathlib.Path) -> list[Sample]:
    """The samples that are not held out."""
    samples = [sample for sample in read_samples(directory) if not sample.is_held_out]
    print(f"{len(samples)} answers, {_answer_tokens(samples)} answer tokens", flush=True)
    return samples


def describe(recipe: Recipe, samples: Sequence[Sample]) -> str:
    """The recipe as one sentence for the file; `samples` are those of the last pass."""
    rates = recipe.rates
    matrices = f"Muon {rates.matrices:g} with weight decay {rates.weight_decay:g}, " if recipe.muon else ""
    return (
        f"{len(samples)} answers of {_answer_tokens(samples)} tokens that the target generated, "
        f"{recipe.steps} steps of at most {recipe.step_tokens} tokens, unrolled {recipe.depths} deep, "
        f"loss at {recipe.loss_share:g} of the positions: cross-entropy to the target's distribution "
        f"and binary cross-entropy of the confidence; {matrices}AdamW {rates.others:g}, "
        f"input noise {recipe.input_noise:g}, cosine schedule"
    )


def main() -> None:
    """Train and write; the file is also written every --save-every steps."""
    options = _options()
    torch.set_num_threads(1)
    path = options.model or smollm2_path()
    source = open_source(path)
    samples = training_samples(options.samples)
    torch.manual_seed(options.seed)
    module, ids = _start(options, source, samples)
    target = freeze_target(source, ids, getattr(torch, options.dtype))
    rates = Rates(options.matrix_rate, options.other_rate, weight_decay=0.05, warm_up_steps=20)
    recipe = Recipe(
        steps=options.steps,
        step_tokens=options.step_tokens,
        depths=options.depths,
        loss_share=options.loss_share,
        input_noise=options.input_noise,
        seed=options.seed,
        rates=rates,
        muon=options.muon,
    )
    metadata = {
        "target_name": options.name,
        "target_sha256": weights_sha256(path),
        "seed": str(options.seed),
        "figures": json.dumps({}),
    }
    start = "" if options.start_from is None else f"{read_metadata(options.start_from)['recipe']}; then "
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
            texts = metadata | {"recipe": start + describe(recipe, samples)}
            write_draft_head(module, ids, texts, options.output)


def _start(
    options: argparse.Namespace, source: WeightSource, samples: Sequence[Sample]
) -> tuple[DraftModule, torch.Tensor | None]:
    """The head to train, and the tokens that it can draft."""
    if options.start_from is not None:
        return read_draft_module(options.start_from, source.config)
    ids = None
    if options.draft_vocabulary:
        ids = frequent_tokens(samples, source.config.vocab_size, options.draft_vocabulary)
    module = DraftModule(dataclasses.replace(source.config, intermediate_size=options.intermediate_size))
    module.start_from_target(source.tensor(FINAL_NORM).float(), samples[0].hidden)
    return module, ids


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, help="default: the installed SmolLM2")
    parser.add_argument("--name", required=True, help="the target's name in the file")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--start-from", type=pathlib.Path, help="a head's file to train further, with its extents")
    parser.add_argument("--intermediate-size", type=int, default=512)
    parser.add_argument("--draft-vocabulary", type=int, default=0, help="most frequent tokens; 0: all")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-tokens", type=int, default=2500)
    parser.add_argument("--depths", type=int, default=4)
    parser.add_argument("--loss-share", type=float, default=1.0)
    parser.add_argument("--input-noise", type=float, default=0.0, help="relative standard deviation")
    parser.add_argument("--matrix-rate", type=float, default=4e-3)
    parser.add_argument(
        "--muon",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="for matrices; its products are bfloat16, so AdamW is the quicker one without AVX-512",
    )
    parser.add_argument("--other-rate", type=float, default=3e-3)
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the products; float32 is the quicker one without AVX-512",
    )
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
