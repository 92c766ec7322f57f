"""Random catalogs: every kind, rectangular and ragged rounds of either allocation, mixed graphs, fixed widths."""

from __future__ import annotations

from scheduler.shapes import Allocation, GraphKind, GraphShape

CAPACITIES = (32, 64, 96, 128, 256, 512, 1024)
BATCHES = (1, 2, 3, 4, 6, 8, 16, 32, 64)


def prefill(capacity, kind=GraphKind.PREFILL):
    return GraphShape(kind, 1, prefill_capacity=capacity)


def round_of(batch, depth, width=None, rows=0, allocation=Allocation.NONE):
    return GraphShape(
        GraphKind.SPECULATIVE, batch, depth, width or depth + 1, rows, speculation_enabled=True, allocation=allocation
    )


def mixed(batch, depth, capacity, speculative, prompt_rows=1):
    return GraphShape(
        GraphKind.MIXED,
        batch,
        depth,
        depth + 1,
        prefill_capacity=capacity,
        speculation_enabled=speculative,
        prompt_rows=prompt_rows,
    )


def sample(rng, values, least, most):
    return rng.sample(values, min(len(values), rng.randint(least, most)))


def random_catalog(rng, largest_batch):
    """(shapes, verification)."""
    batches = [b for b in BATCHES if b <= largest_batch]
    speculative = rng.random() < 0.65
    width = rng.choice((1, 2, 3, 4)) if speculative and rng.random() < 0.2 else 0
    shapes = [prefill(c) for c in sample(rng, CAPACITIES, 1, 4)]
    if rng.random() < 0.25:
        shapes += [prefill(c, GraphKind.SCORED_PREFILL) for c in sample(rng, CAPACITIES, 1, 2)]
    if speculative:
        shapes += rounds(rng, sample(rng, batches, 1, 4), width)
    if not speculative or rng.random() < 0.15:
        shapes += [GraphShape(GraphKind.DECODE, b) for b in sample(rng, batches, 1, 5)]
    if rng.random() < 0.35:
        shapes += mixed_graphs(rng, speculative, width)
    shapes += state_graphs(rng, batches)
    if rng.random() < 0.6:
        rng.shuffle(shapes)
    shapes = list(dict.fromkeys(shapes))
    return shapes, f"fixed:{width}" if width else "adaptive"


def rounds(rng, batches, width):
    """Rounds per batch: width one, rectangular, and ragged with either allocation; for a fixed width also of it."""
    allocations = (Allocation.NONE, Allocation.HOST) if width else (Allocation.NONE, Allocation.HOST, Allocation.DEVICE)
    style = rng.choice((Allocation.NONE, Allocation.HOST, Allocation.DEVICE, None))
    if width and style is Allocation.DEVICE:
        style = Allocation.HOST
    found = []
    for batch in batches:
        found.append(round_of(batch, 0))
        depths = [width - 1] if width else rng.sample((1, 2, 3, 5, 7), rng.randint(1, 2))
        for depth in depths:
            allocation = style or rng.choice(allocations)
            lane = depth + 1
            if allocation is Allocation.NONE or depth == 0:
                found.append(round_of(batch, depth, allocation=rng.choice(allocations) if depth else Allocation.NONE))
                continue
            for rows in sorted({rng.randint(max(1, batch // 2), batch * lane) for _ in range(rng.randint(1, 3))}):
                found.append(round_of(batch, depth, rows=rows, allocation=allocation))
        if not width and rng.random() < 0.1:
            found.append(round_of(batch, 1, width=4, allocation=Allocation.HOST))
    return found


def ragged_catalog(rng, batch):
    """Prefill, and rounds of one batch whose rows never suffice for all drafts, with either allocation."""
    found = [prefill(64), prefill(256), round_of(batch, 0)]
    for allocation in (Allocation.HOST, Allocation.DEVICE):
        depth = rng.choice((2, 3, 5))
        rows = rng.sample(range(batch + 1, batch * (depth + 1)), 2)
        found += [round_of(batch, depth, rows=r, allocation=allocation) for r in rows]
    return found


def learning_catalog(rng, batch):
    """Prefill, and rounds of two batches, narrow and wide."""
    found = [prefill(64), prefill(256)]
    for rows in (batch, max(1, batch // 2)):
        found.append(round_of(rows, 0))
        for depth in rng.sample((1, 2, 3, 5), 2):
            found.append(round_of(rows, depth, allocation=rng.choice((Allocation.HOST, Allocation.DEVICE))))
            found.append(round_of(rows, depth, rows=rows * depth, allocation=found[-1].allocation))
    return list(dict.fromkeys(found))


def mixed_graphs(rng, speculative, width):
    found = []
    for batch in sample(rng, (2, 4, 8, 16), 1, 2):
        for capacity in sample(rng, (64, 128, 256), 1, 2):
            depths = [width - 1] if width else [0, *sample(rng, (1, 2, 3), 0, 2)]
            found += [mixed(batch, depth if speculative else 0, capacity, speculative) for depth in depths]
    return found


def fuller_graphs(rng, shapes, width, largest_batch):
    """Mixed graphs of several prompts for the generation mode of `shapes`, some of odd multiples of eight rows."""
    speculative = any(shape.kind is GraphKind.SPECULATIVE for shape in shapes)
    batches = [b for b in (2, 4, 8, 16, 24, 40, 64) if b <= largest_batch]
    found = []
    for batch in sample(rng, batches, 1, 3):
        for capacity in sample(rng, (64, 128, 256, 512), 1, 2):
            depth = width - 1 if width else rng.choice((0, 0, 1, 2)) if speculative else 0
            rows = sorted({min(batch, rng.randint(1, 4)) for _ in range(rng.randint(1, 2))})
            found += [mixed(batch, depth, capacity, speculative, r) for r in rows]
    return found


def state_graphs(rng, batches):
    kinds = []
    if rng.random() < 0.4:
        kinds.append(GraphKind.INIT)
    if rng.random() < 0.4:
        kinds += [GraphKind.SNAPSHOT, GraphKind.RESTORE]
    elif rng.random() < 0.2:
        kinds.append(rng.choice((GraphKind.SNAPSHOT, GraphKind.RESTORE)))
    if rng.random() < 0.4:
        kinds.append(GraphKind.VISION)
    if rng.random() < 0.45:
        kinds.append(GraphKind.TERMINAL_SNAPSHOT)
    return [GraphShape(kind, batch) for kind in kinds for batch in sample(rng, batches, 1, 2)]
