"""Print how many drafts a head's rounds accept on held-out samples, and how well its confidence is calibrated.

python -m gpu.training.measure_acceptance --samples SCRATCH --model gpu/assets/byte-model \
    --head gpu/assets/draft-heads/byte-model.safetensors --store
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

import torch

from gpu.model.draft_head import DraftHead, load_draft_head
from gpu.model.weights import Model, load_model, open_source
from gpu.training.acceptance import (
    DraftedText,
    accepted_per_round,
    calibration,
    calibration_error,
    copied_text,
    draft_text,
)
from gpu.training.chat_tokenizer import smollm2_path
from gpu.training.draft_training import freeze_target
from gpu.training.head_files import read_draft_module, store_figures
from gpu.training.rounds import SpeculativeSequence
from gpu.training.samples import Sample, read_samples

DRAFTS = (1, 3, 5, 7)
_MODES = {"greedy": 0.0, "temperature 1": 1.0}
_BINS = 5


def measure(texts: list[DraftedText], title: str, seed: int) -> dict[str, float]:
    """Print and return the mean accepted drafts per round, by the number of drafts."""
    accepted = {
        f"D={drafts}": round(accepted_per_round(texts, drafts, torch.Generator().manual_seed(seed)), 3)
        for drafts in DRAFTS
    }
    print(f"{title}, {len(texts)} texts: " + ", ".join(f"{name} {value:.3f}" for name, value in accepted.items()))
    return accepted


def print_calibration(texts: list[DraftedText]) -> None:
    """Print confidence beside acceptance."""
    table = calibration(texts, _BINS)
    rows = ", ".join(f"{said:.2f} said {was:.2f} accepted ({count} drafts)" for said, was, count in table)
    print(f"  confidence: {rows}; mean error {calibration_error(table):.3f}")


@torch.inference_mode()
def measure_rounds(
    model: Model, head: DraftHead, samples: Sequence[Sample], mode: str, output_tokens: int
) -> dict[str, float]:
    """Print and return what complete rounds accept after the samples' prompts, in float32."""
    results = {}
    for drafts in DRAFTS:
        accepted: list[int] = []
        for seed, sample in enumerate(samples):
            prompt = sample.token_ids[: sample.prompt_tokens].tolist()
            wanted = len(prompt) + output_tokens
            sequence = SpeculativeSequence(model, head, prompt, wanted + drafts + 1, _MODES[mode] == 0, seed)
            while sequence.tokens < wanted:
                sequence.run_round(drafts)
            accepted += sequence.text.accepted
        results[f"D={drafts}"] = round(sum(accepted) / max(1, len(accepted)), 3)
    text = ", ".join(f"{name} {value:.3f}" for name, value in results.items())
    print(f"complete rounds, {mode}, {len(samples)} texts: {text}", flush=True)
    return results


def main() -> None:
    """Measure the held-out samples of each mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, help="default: the installed SmolLM2")
    parser.add_argument("--head", type=pathlib.Path, required=True)
    parser.add_argument("--store", action="store_true", help="write the figures into the head's file")
    parser.add_argument("--most-texts", type=int, default=100, help="of each mode")
    parser.add_argument("--rounds", type=int, default=0, help="texts of each mode to decode in complete rounds, too")
    parser.add_argument("--output-tokens", type=int, default=160, help="of each such text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model_path = options.model or smollm2_path()
    source = open_source(model_path)
    module, ids = read_draft_module(options.head, source.config)
    target = freeze_target(source, ids)
    held_out = [sample for sample in read_samples(options.samples) if sample.is_held_out]
    generator = torch.Generator().manual_seed(options.seed)
    figures = {}
    for mode, temperature in _MODES.items():
        samples = [sample for sample in held_out if _is_usable(sample, temperature)][: options.most_texts]
        if not samples:
            print(f"no held-out samples of mode {mode}")
            continue
        texts = [draft_text(module, target, ids, sample, max(DRAFTS), generator) for sample in samples]
        figures[mode] = measure(texts, f"draft head, {mode}", options.seed)
        print_calibration(texts)
        measure([copied_text(sample, max(DRAFTS)) for sample in samples], f"copied n-grams, {mode}", options.seed)
        if options.rounds:
            model = load_model(source, torch.float32, target.config.context_tokens)
            head = load_draft_head(options.head, model)
            measure_rounds(model, head, samples[: options.rounds], mode, options.output_tokens)
    if options.store:
        store_figures(options.head, figures)


def _is_usable(sample: Sample, temperature: float) -> bool:
    return sample.temperature == temperature and sample.token_ids.shape[0] > sample.prompt_tokens + max(DRAFTS)


if __name__ == "__main__":
    main()
