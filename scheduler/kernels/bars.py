"""Candidates that the policy's cadence or token budget rules out (S4, S11), whatever they are worth."""

from __future__ import annotations

from scheduler import layout
from scheduler.kernels.filling import prompt_limit
from scheduler.kernels.jit import inlined, inner


@inlined
def bars_incomplete(policy):
    """Whether only graphs compete that serve every decoding lane, where there are such."""
    return policy["cadence"] == 1 or policy["token_budget"] > 0


@inner
def set_bars(world):
    """Bars what decode_cadence or token_budget rules out, among candidates that nothing else bars.

    Where that would leave none, all of these bars are lifted.
    """
    policy = world.policy[0]
    if not bars_incomplete(policy):
        return
    decoders, bar = 0, layout.CADENCE
    for i in range(len(world.slots)):
        decoders += world.views[i]["selectable"]
    if policy["token_budget"] > 0:
        bar = layout.TOKEN_BUDGET
    if decoders > 0:
        _bar_incomplete(world, decoders, bar)
    if policy["token_budget"] > 0:
        _bar_long_prefills(world, decoders)
        _bar_shorter(world)
    for c in range(world.decision[0]["found"]):
        if world.candidates[c]["barred"] == layout.NOT_BARRED:
            return
    for c in range(world.decision[0]["found"]):
        if world.candidates[c]["barred"] == bar:
            world.candidates[c]["barred"] = layout.NOT_BARRED


@inlined
def _competes(world, row):
    """An inference graph without a following one that nothing bars yet."""
    inference = world.graphs[row["graph"]]["kind"] >= layout.KIND_PREFILL
    return inference and row["following"] < 0 and row["barred"] == layout.NOT_BARRED


@inner
def _bar_incomplete(world, decoders, bar):
    """Bars candidates that serve fewer than all decoding lanes where a measured graph could serve them all.

    Of a candidate with prompts: a mixed graph with a row to spare, on which each of its prompts has work.
    """
    largest, fits = _largest_mixed(world, decoders), _fits_decode(world, decoders)
    for c in range(world.decision[0]["found"]):
        row = world.candidates[c]
        if not _competes(world, row) or row["lanes"] - row["prompts"] >= decoders:
            continue
        if world.graphs[row["graph"]]["kind"] == layout.KIND_SCORED_PREFILL:
            continue
        if row["prompts"] == 0:
            if fits:
                row["barred"] = bar
        elif largest >= 0 and _all_have_work(world, row, largest):
            row["barred"] = bar


@inner
def _largest_mixed(world, decoders):
    """The capacity index of the largest usable measured MIXED graph with more rows than decoding lanes; -1 without."""
    largest = -1
    for g in range(len(world.graphs)):
        graph = world.graphs[g]
        if graph["kind"] == layout.KIND_MIXED and graph["usable"] == 1 and graph["duration_ns"] > 0:
            if graph["batch"] > decoders:
                largest = max(largest, graph["capacity_index"])
    return largest


@inner
def _fits_decode(world, decoders):
    """Whether a usable measured generation or MIXED graph has a row for every decoding lane."""
    for g in range(len(world.graphs)):
        graph = world.graphs[g]
        if graph["kind"] < layout.KIND_DECODE or graph["usable"] == 0 or graph["duration_ns"] == 0:
            continue
        if graph["batch"] >= decoders and (graph["ragged"] == 0 or graph["rows"] >= decoders):
            return True
    return False


@inner
def _all_have_work(world, row, capacity):
    end = row["first"] + row["lanes"]
    for i in range(end - row["prompts"], end):
        if world.work[world.pool[0, i], capacity] == 0:
            return False
    return True


@inner
def _bar_long_prefills(world, decoders):
    """A token budget bars PREFILL candidates that consume more than what it leaves beside the decoding lanes."""
    limit = prompt_limit(world, decoders)
    for c in range(world.decision[0]["found"]):
        row = world.candidates[c]
        if world.graphs[row["graph"]]["kind"] == layout.KIND_PREFILL and row["barred"] == layout.NOT_BARRED:
            if row["prompt_tokens"] > limit:
                row["barred"] = layout.TOKEN_BUDGET


@inner
def _bar_shorter(world):
    """A token budget bars candidates that consume fewer prompt tokens than another one that is eligible."""
    most = 0
    for c in range(world.decision[0]["found"]):
        row = world.candidates[c]
        if _competes(world, row):
            most = max(most, row["prompt_tokens"])
    for c in range(world.decision[0]["found"]):
        row = world.candidates[c]
        if _competes(world, row) and row["prompt_tokens"] < most:
            row["barred"] = layout.TOKEN_BUDGET
