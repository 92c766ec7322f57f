"""The candidate table: how a candidate is started, filled and priced (S4).

A candidate is built in the table's next row: start_candidate(), then its lanes and summed values, then
finish_candidate(), which alone counts it and keeps it. What is started and not finished is overwritten by the next.
When the table or the cohort pool is full, decision["overflow"] is set and the row is garbage: the caller of the
entry enlarges both and decides again.
"""

from __future__ import annotations

from scheduler import layout
from scheduler.kernels.context import rows_of
from scheduler.kernels.jit import inlined, inner
from scheduler.kernels.lateness import late_relief

HASH_MODULUS = 2147483647


@inlined
def start_candidate(world, graph, following):
    """The next row, as a candidate of `graph` (and `following`, -1 without) without lanes.

    Sets known, horizon_ns and horizon_ms (T, or T + F; 0 and 0.0 when one is unknown), no prompt lanes, sums 0.0 and
    `first` = the pool's next entry.
    """
    decision, graphs = world.decision, world.graphs
    c = decision[0]["found"]
    if c >= len(world.candidates):
        decision[0]["overflow"] = 1
        c = len(world.candidates) - 1
    row = world.candidates[c]
    horizon_ns = graphs[graph]["duration_ns"]
    known = 1 if horizon_ns > 0 else 0
    if following >= 0:
        if graphs[following]["duration_ns"] == 0:
            known = 0
        horizon_ns += graphs[following]["duration_ns"]
    row["graph"] = graph
    row["following"] = following
    row["known"] = known
    row["barred"] = layout.NOT_BARRED
    row["needs_empty"] = 0
    row["lanes"] = 0
    row["following_lanes"] = 0
    row["first"] = decision[0]["pooled"]
    row["following_first"] = decision[0]["pooled"]
    row["served"] = 0
    row["prompts"] = 0
    row["prompt_tokens"] = 0
    row["following_prompts"] = 0
    row["horizon_ns"] = horizon_ns if known == 1 else 0
    row["horizon_ms"] = horizon_ns / 1e6 if known == 1 else 0.0
    row["token_value"] = 0.0
    row["delivery_value"] = 0.0
    row["age_relief"] = 0.0
    row["terminal_relief"] = 0.0
    row["prompt_wait_relief"] = 0.0
    row["decode_late_relief"] = 0.0
    row["wait_cost"] = 0.0
    row["logical_rows"] = 0
    row["physical_rows"] = graphs[graph]["physical"]
    row["hash"] = 0
    return c


@inlined
def push(world, slot, rows):
    """Appends one lane (its slot and its rows or prompt tokens) to the cohort pool; the caller counts it in lanes."""
    i = world.decision[0]["pooled"]
    if i >= world.pool.shape[1]:
        world.decision[0]["overflow"] = 1
        return
    world.pool[0, i] = slot
    world.pool[1, i] = rows
    world.decision[0]["pooled"] = i + 1


@inlined
def price(world, c):
    """Score, wait_cost and decode_late_relief of row `c` from its other sums, known, horizon_ms and lanes (S4)."""
    world.candidates[c]["decode_late_relief"] = late_relief(world, world.candidates[c])
    score(world, c)


@inlined
def score(world, c):
    """Score and wait_cost of row `c` from its six sums, known and horizon_ms (S4)."""
    row = world.candidates[c]
    work = undivided(row)
    if row["known"] == 1:
        row["wait_cost"] = row["horizon_ms"] / 2.0 * world.decision[0]["wait_price"]
        row["score"] = work / row["horizon_ms"] - row["wait_cost"]
    else:
        row["wait_cost"] = 0.0
        row["score"] = work


@inlined
def undivided(row):
    """The sum of the six values."""
    four = row["token_value"] + row["delivery_value"] + row["age_relief"] + row["terminal_relief"]
    return four + row["prompt_wait_relief"] + row["decode_late_relief"]


@inlined
def finish_candidate(world, c):
    """Keeps row `c`: its logical rows and what bars it or makes it wait. Call price() before.

    Needs graph, following, lanes, following_lanes, served, prompts and the pool's entries. Does not count
    `priced`: the caller does, for it may have compared several cohorts.
    """
    row = world.candidates[c]
    decision = world.decision[0]
    if decision["overflow"] == 1:
        return
    logical, waits = 0, 0
    for i in range(row["first"], row["first"] + row["lanes"]):
        logical += world.pool[1, i]
        waits |= world.views[world.pool[0, i]]["waits"]
    row["logical_rows"] = logical
    row["needs_empty"] = needs_empty(world, world.graphs[row["graph"]], waits)
    if decision["free_pages"] < layout.UNBOUNDED:
        _bar_without_pages(world, row)
    decision["found"] = c + 1


@inlined
def needs_empty(world, graph, waits):
    """1 where a candidate of this graph must not queue behind another frame (S10). `waits`: lanes that must wait."""
    queueable = graph["kind"] == layout.KIND_DECODE or graph["kind"] == layout.KIND_SPECULATIVE
    return 0 if queueable and waits == 0 and is_fresh(world, graph) else 1


@inner
def _bar_without_pages(world, row):
    if row["barred"] == layout.NOT_BARRED and _new_pages(world, row) > world.decision[0]["free_pages"]:
        row["barred"] = layout.PAGES


@inlined
def is_fresh(world, graph):
    """Measured, and not stale at now."""
    if graph["duration_ns"] == 0:
        return False
    return world.decision[0]["now_ns"] - graph["observed_ns"] <= world.policy[0]["ttl_ns"]


@inner
def _pages_of(world, slot, tokens):
    """Pages that `tokens` in all need beyond those held."""
    size = world.decision[0]["page_tokens"]
    return max(0, (tokens + size - 1) // size - world.slots[slot]["pages_held"])


@inlined
def ceiling_of(world, graph, slot, rows):
    """The most output tokens of a decode lane: under device allocation all it may use, else its rows."""
    if world.graphs[graph]["ragged"] == 1 and world.graphs[graph]["allocation"] == layout.ALLOCATE_DEVICE:
        return rows_of(world, slot, graph)
    return rows


@inner
def new_decode_pages(world, graph, slot, rows):
    """Pages that a decode lane with so many rows needs beyond those held."""
    state = world.slots[slot]
    position = state["consumed"] + state["emitted"] + state["pending"]
    return _pages_of(world, slot, position + ceiling_of(world, graph, slot, rows) + world.graphs[graph]["depth"])


@inner
def new_prompt_pages(world, slot, tokens):
    """Pages that a prompt lane which consumes so many tokens needs beyond those held."""
    return _pages_of(world, slot, world.slots[slot]["consumed"] + tokens + 1)


@inlined
def identity(graph):
    """What padding does not touch: kind, D and allocation as one number."""
    return (graph["kind"] * 128 + graph["depth"]) * 4 + graph["allocation"]


@inlined
def graph_hash(graph):
    """Of what graphs must share for one to prune the other; no kind's is 0 but INIT's."""
    return identity(graph) * 1000003 % HASH_MODULUS


@inlined
def lane_hash(slot, rows):
    """Of one lane; a cohort's is their sum."""
    x = slot * 128 + rows + 1
    return x * x % HASH_MODULUS


@inner
def _new_pages(world, row):
    """Pages that the submitted graph's lanes need beyond those held (S4); state kinds need none."""
    graph = row["graph"]
    if world.graphs[graph]["kind"] < layout.KIND_PREFILL:
        return 0
    pages = 0
    decoders_end = row["first"] + row["lanes"] - row["prompts"]
    for i in range(row["first"], decoders_end):
        pages += new_decode_pages(world, graph, world.pool[0, i], world.pool[1, i])
    for i in range(decoders_end, decoders_end + row["prompts"]):
        pages += new_prompt_pages(world, world.pool[0, i], world.pool[1, i])
    return pages
