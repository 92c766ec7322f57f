"""What finer and wider catalogs of mixed programs cost: programs, static tensors, time to prepare, memory on a GPU.

    python benchmarks/bench_mixed_catalogs.py [--model PATH] [--threads N] [--rounds N] [--only NAME]

Each catalog is prepared on this CPU from a model that is loaded anew. Static tensors are those that programs keep
between runs beside the shared ones (weights, KV pages, slots). A GPU's memory is gpu.cuda.memory's estimate for a
model of 1.2 thousand million weights in bfloat16: nothing here runs on a GPU. With --rounds, also the time of one
mixed program for the same prompt tokens, as one prompt and as several, taken in turn. Times are those of the process
on its cores, so that what runs beside it counts less.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time

import numpy as np
import torch

from gpu.capacity import CatalogLimits, MixedSizes, build_catalog
from gpu.create import create_context
from gpu.cuda.memory import programs_bytes
from gpu.device import DeviceLimits, SamplingParameters
from gpu.model.weights import load_model, open_source
from gpu.pages import PAGE_TOKENS, pages_for
from gpu.programs.create import STATE_KINDS, create_copy_program, create_init_program, create_program
from gpu.programs.inference import InferenceProgram
from gpu.programs.interface import LaneInput, ProgramContext
from gpu.selfcheck.models import billion_config
from scheduler.shapes import GraphKind, GraphShape
from service.model_source import resolve_model

PREFILL = (4, 16, 32, 64, 128, 256, 512)
CONTEXT, SLOTS = 2048, 64
CATALOGS = {
    "without mixed programs": None,
    "as before": MixedSizes(),
    "4 prompts": MixedSizes(4),
    "4 prompts, batches in eights": MixedSizes(4, 8),
    "4 prompts, prompts in steps of 64": MixedSizes(4, 0, 64),
    "4 prompts, both": MixedSizes(4, 8, 64),
}
COHORTS = {"1 prompt of 256": (256,), "2 of 128": (128, 128), "4 of 64": (64, 64, 64, 64)}


def main() -> None:
    """Prints one row for each catalog, then one for each cohort."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", choices=tuple(CATALOGS), action="append", help="one catalog; may be repeated")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = resolve_model("smollm2-135m-instruct").path if options.model is None else options.model
    print("catalog | programs | mixed | static MiB | prepared, CPU s | estimate for a GPU, GiB")
    for name in options.only or CATALOGS:
        print(" | ".join((name, *catalog_row(path, CATALOGS[name]))), flush=True)
    for line in cohort_rows(path, options.rounds) if options.rounds else ():
        print(line, flush=True)


def catalog_row(path: pathlib.Path, sizes: MixedSizes | None) -> tuple[str, ...]:
    """Programs, mixed ones, MiB of static tensors, CPU seconds to prepare, estimated GiB on a GPU."""
    shapes = build_catalog(
        CatalogLimits(
            batches=(1, 2, 4, 8, 16),
            prefill_capacities=PREFILL,
            scored_capacities=PREFILL[::2],
            mixed_prefill=sizes is not None,
            mixed_declared=True,
            mixed_sizes=sizes or MixedSizes(),
            concurrency=SLOTS,
            state_batches=(1, 4, 16),
        )
    )
    context = open_context(path)
    shared = {storage.data_ptr() for storage in storages(context)}
    began = time.process_time()
    programs = [prepare(shape, context) for shape in shapes]
    seconds = time.process_time() - began
    own = {storage.data_ptr(): storage.nbytes() for program in programs for storage in storages(program)}
    static = sum(size for address, size in own.items() if address not in shared)
    estimate = programs_bytes(shapes, billion_config(), pages_for(CONTEXT), torch.bfloat16)
    mixed = sum(shape.kind is GraphKind.MIXED for shape in shapes)
    return (str(len(shapes)), str(mixed), f"{static / 2**20:.1f}", f"{seconds:.1f}", f"{estimate / 2**30:.2f}")


def open_context(path: pathlib.Path) -> ProgramContext:
    """A model in float32 with the pages of four full contexts."""
    model = load_model(open_source(path), torch.float32, CONTEXT, one_row_copies=False)
    pages = 4 * pages_for(CONTEXT)
    limits = DeviceLimits(CONTEXT, pages, PAGE_TOKENS, model.config.vocab_size, SLOTS, snapshot_rows=2)
    return create_context(limits, model, None, torch.device("cpu"), captured=False)


def prepare(shape: GraphShape, context: ProgramContext) -> object:
    """A program, run once over padding, as a start does."""
    if shape.kind in STATE_KINDS:
        make = create_init_program if shape.kind is GraphKind.INIT else create_copy_program
        make(shape, context).run(())
        return None
    program = create_program(shape, context)
    program.run(())
    program.logits = torch.empty(0)  # of the latest run only
    return program


def storages(holder: object) -> list[torch.UntypedStorage]:
    """The memory of every tensor that an object of this project holds, but for weights in oneDNN's own form."""
    found: list[torch.UntypedStorage] = []
    seen: set[int] = set()
    waiting = [holder]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or thing is None:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            found += [] if thing.is_mkldnn else [thing.untyped_storage()]
        elif isinstance(thing, (list, tuple)):
            waiting += thing
        elif type(thing).__module__.startswith("gpu."):
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            waiting += [getattr(thing, name, None) for name in slots] + [*getattr(thing, "__dict__", {}).values()]
    return found


def cohort_rows(path: pathlib.Path, rounds: int) -> list[str]:
    """CPU ms of one mixed program with four decoders, for the same prompt tokens as one prompt, two and four."""
    context = open_context(path)
    program = create_program(GraphShape(GraphKind.MIXED, 8, prefill_capacity=256, prompt_rows=4), context)
    times: dict[str, list[float]] = {name: [] for name in COHORTS}
    for number in range(rounds + 1):
        for name, counts in COHORTS.items():
            taken = cohort_ms(program, context, counts)
            if number:
                times[name].append(taken)
    return [
        f"{name} | {statistics.median(taken):.1f} ms ({min(taken):.1f} to {max(taken):.1f})"
        for name, taken in times.items()
    ]


def cohort_ms(program: InferenceProgram, context: ProgramContext, counts: tuple[int, ...]) -> float:
    """One run over fresh prompts of these lengths and four decoders of 200 tokens."""
    for slot in range(8):
        context.state.open(slot)
        context.state.set_pages(slot, 0, range(1 + 32 * slot, 33 + 32 * slot))
        context.sampling.open(slot, SamplingParameters(temperature=0.0), [1])
        context.state.cursor[slot] = 200 if slot >= 4 else 0
    prompts = [LaneInput(slot, np.arange(count) + 100) for slot, count in enumerate(counts)]
    lanes = [*prompts, *(LaneInput(slot) for slot in range(4, 8))]
    began = time.process_time()
    program.run(lanes)
    return (time.process_time() - began) * 1e3


if __name__ == "__main__":
    main()
