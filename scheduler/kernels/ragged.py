"""Adaptive ragged rounds (S2, S4): three orderings of the lanes, every prefix of each with its causal row allocation.

All shapes of a decision share one ranking of the drafts per estimator. When a cohort grows by one lane, one row less
is free for drafts and one more lane competes for them: the drafts that still get a row are a shorter stretch of the
ranking than before. So all prefixes of an ordering cost one walk along the ranking, from its end towards its start.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from scheduler import layout
from scheduler.kernels.context import decode_late
from scheduler.kernels.jit import allocating, inlined, inner

# One decision's lanes and scratch. n lanes are numbered densely, in slot order; D is the deepest draft of the catalog.
# slots, limits, ticks [n]: of lane i; token [2, n, D + 2]: its token value by estimator and rows; fixed_value [3, n]:
# delivery price, relief and late at the shape's horizon; ranked [2]: entries in each estimator's ranking, -1 before
# that; rank_lane, rank_depth [2, n * D]: the drafts by survival descending, depth and slot ascending; place [2, n, D]:
# where in the ranking the draft of depth d (index d - 1) stands; rows [n]: rows a lane may use in the shape; order
# [3, n]: lanes by total, pending and relative value; key [3, n]; drafts, at [n]: drafts with a row, position in the
# cohort; sums [n + 1], terms [n]: of a walk. walks: what shapes of equal P, lane width and estimator share.
Ragged = namedtuple(
    "Ragged",
    "slots limits ticks token fixed_value ranked rank_lane rank_depth place rows order key drafts at sums terms walks",
)

# Every prefix of an ordering, for one P, lane width and estimator; its cohorts do not depend on B. of_graph [G]: the
# walk k of a ragged shape, -1 of others; reach [k]: the largest B of its shapes; walked [k, 3]: lanes that were walked
# per ordering; order [k, 3, most]: those lanes; token [k, 3, most]: token value of the first 1, 2, ... lanes; end
# [k, 3, most]: where in the ranking the drafts without a row begin.
Walks = namedtuple("Walks", "of_graph reach walked order token end")

_TOTAL, _PENDING, _RELATIVE = range(3)
_DELIVERY, _RELIEF, _LATE = range(3)

_FEW = 8
"""Lanes up to which looking at each for the draft to retract is faster than walking along the ranking."""


@allocating
def new_ragged(world):
    """The selectable decoding lanes of this decision; call once after set_context, when a ragged shape is usable."""
    lanes = 0
    for slot in range(len(world.slots)):
        lanes += world.views[slot]["selectable"]
    depth = world.survival.shape[2]
    walks = _new_walks(world.graphs, lanes)
    ragged = Ragged(
        np.empty(lanes, np.int64),
        np.empty(lanes, np.int64),
        np.empty(lanes, np.int64),
        np.empty((2, lanes, depth + 2)),
        np.empty((3, lanes)),
        np.full(2, -1, np.int64),
        np.empty((2, lanes * depth), np.int64),
        np.empty((2, lanes * depth), np.int64),
        np.empty((2, lanes, depth), np.int64),
        np.empty(lanes, np.int64),
        np.empty((3, lanes), np.int64),
        np.empty((3, lanes)),
        np.zeros(lanes, np.int64),
        np.empty(lanes, np.int64),
        np.empty(lanes + 1),
        np.empty(lanes),
        walks,
    )
    i = 0
    for slot in range(len(world.slots)):
        if world.views[slot]["selectable"] == 1:
            ragged.slots[i] = slot
            ragged.limits[i] = world.views[slot]["limit"]
            ragged.ticks[i] = world.slots[slot]["last_served_tick"]
            for ordering in range(3):
                ragged.order[ordering, i] = i
            i += 1
    return ragged


@allocating
def _new_walks(graphs, lanes):
    """Which shapes share walks; nothing is walked yet."""
    of_graph = np.full(len(graphs), -1, np.int64)
    first = np.empty(len(graphs), np.int64)
    count = 0
    most = 0
    reach = np.zeros(len(graphs), np.int64)
    for g in range(len(graphs)):
        if graphs[g]["ragged"] == 0 or graphs[g]["usable"] == 0:
            continue
        k = 0
        while k < count and not _walk_alike(graphs[first[k]], graphs[g]):
            k += 1
        if k == count:
            first[k] = g
            count += 1
        of_graph[g] = k
        reach[k] = max(reach[k], min(graphs[g]["batch"], graphs[g]["rows"], lanes))
        most = max(most, reach[k])
    return Walks(
        of_graph,
        reach,
        np.zeros((count, 3), np.int64),
        np.empty((count, 3, most), np.int64),
        np.empty((count, 3, most)),
        np.empty((count, 3, most), np.int64),
    )


@inner
def _walk_alike(a, b):
    same_rows = a["rows"] == b["rows"] and a["lane_width"] == b["lane_width"]
    return same_rows and a["estimator"] == b["estimator"]


@inlined
def adaptive_ragged(world, ragged, graph):
    """The best cohort of one adaptive ragged shape: its lane count; 0 without lanes.

    Writes slots and allocated rows in summing order (the ordering's own) behind the cohort pool's used entries; the
    caller takes them into use, prices them and counts 3 * min(B, P, lanes) priced cohorts. A pool that is too small
    sets overflow and gives 0.
    """
    lanes = len(ragged.slots)
    rows = world.graphs[graph]["rows"]
    most = min(world.graphs[graph]["batch"], rows, lanes)
    if most == 0:
        return 0
    estimator = world.graphs[graph]["estimator"]
    if ragged.ranked[estimator] < 0:
        rank_drafts(world, ragged, estimator)
    horizon_ms = world.graphs[graph]["duration_ns"] / 1e6
    _value_lanes(world, ragged, estimator, world.graphs[graph]["lane_width"], horizon_ms)
    for ordering in range(3):
        _sort_lanes(ragged, ordering)
    wait_cost = horizon_ms / 2.0 * world.decision[0]["wait_price"]
    walk = ragged.walks.of_graph[graph]
    best_score = -np.inf
    best_lanes = 0
    best_ordering = 0
    for ordering in range(3):
        if _repeats_earlier(ragged.order, ordering, most):
            continue
        if not _is_walked(ragged, walk, ordering, most):
            _walk(ragged, walk, estimator, ordering, rows)
        score, count = _best_prefix(ragged, walk, ordering, most, horizon_ms, wait_cost)
        if best_lanes == 0 or score > best_score or (score == best_score and count > best_lanes):
            best_score, best_lanes, best_ordering = score, count, ordering
    if not has_room(world, best_lanes):
        return 0
    first = world.decision[0]["pooled"]
    end = ragged.walks.end[walk, best_ordering, best_lanes - 1]
    for k in range(best_lanes):
        lane = ragged.order[best_ordering, k]
        world.pool[0, first + k] = ragged.slots[lane]
        world.pool[1, first + k] = 1 + _drafts_before(ragged, estimator, lane, end)
    return best_lanes


@inlined
def has_room(world, lanes):
    """Whether the cohort pool has entries for `lanes` more; sets overflow where it has not."""
    if world.decision[0]["pooled"] + lanes <= world.pool.shape[1]:
        return True
    world.decision[0]["overflow"] = 1
    return False


@allocating
def rank_drafts(world, ragged, estimator):
    """Fills token values and the ranking for one estimator: a merge sort of the lanes' drafts, each lane a run.

    A draft's code, depth * lanes + lane, orders drafts of equal survival.
    """
    lanes = len(ragged.slots)
    deepest = world.survival.shape[2]
    starts = np.empty(lanes + 1, np.int64)
    survival = np.empty((2, lanes * deepest))
    codes = np.empty((2, lanes * deepest), np.int64)
    size = 0
    for i in range(lanes):
        slot = ragged.slots[i]
        price = world.views[slot]["output_price"]
        usable = min(deepest, ragged.limits[i] - 1)
        for rows in range(1, usable + 2):
            ragged.token[estimator, i, rows] = price * world.yields[slot, estimator, layout.YIELD_SCORE, rows]
        starts[i] = size
        for depth in range(1, usable + 1):
            survival[0, size] = world.survival[slot, estimator, depth - 1]
            codes[0, size] = depth * lanes + i
            size += 1
    starts[lanes] = size
    ragged.ranked[estimator] = size
    sorted_in = _merge_runs(survival, codes, starts)
    for k in range(size):
        lane, depth = codes[sorted_in, k] % lanes, codes[sorted_in, k] // lanes
        ragged.rank_lane[estimator, k] = lane
        ragged.rank_depth[estimator, k] = depth
        ragged.place[estimator, lane, depth - 1] = k


@inner
def _merge_runs(survival, codes, starts):
    """Bottom-up merge of the sorted runs [starts[i], starts[i + 1]), to and fro between rows 0 and 1: the last row."""
    runs = len(starts) - 1
    source = 0
    step = 1
    while step < runs:
        for run in range(0, runs, 2 * step):
            middle, end = starts[min(run + step, runs)], starts[min(run + 2 * step, runs)]
            _merge(survival[source], codes[source], starts[run], middle, end, survival[1 - source], codes[1 - source])
        source = 1 - source
        step *= 2
    return source


@inner
def _merge(survival, codes, start, middle, end, survival_out, codes_out):
    a, b, k = start, middle, start
    while a < middle and b < end:
        if survival[a] > survival[b] or (survival[a] == survival[b] and codes[a] < codes[b]):
            survival_out[k], codes_out[k] = survival[a], codes[a]
            a += 1
        else:
            survival_out[k], codes_out[k] = survival[b], codes[b]
            b += 1
        k += 1
    while a < middle:
        survival_out[k], codes_out[k] = survival[a], codes[a]
        a += 1
        k += 1
    while b < end:
        survival_out[k], codes_out[k] = survival[b], codes[b]
        b += 1
        k += 1


@inlined
def _value_lanes(world, ragged, estimator, width, horizon_ms):
    """Each lane's rows in the shape and the three values that it is ordered by."""
    for i in range(len(ragged.slots)):
        view = world.views[ragged.slots[i]]
        delivery = view["delivery_price"]
        relief = view["age_weight"] * (view["age_ms"] + horizon_ms)
        rows = min(width, ragged.limits[i])
        late = decode_late(world, ragged.slots[i], horizon_ms)
        total = ragged.token[estimator, i, rows] + delivery + relief + late
        ragged.rows[i] = rows
        ragged.fixed_value[_DELIVERY, i] = delivery
        ragged.fixed_value[_RELIEF, i] = relief
        ragged.fixed_value[_LATE, i] = late
        ragged.key[_TOTAL, i] = total
        ragged.key[_PENDING, i] = ragged.token[estimator, i, 1] + delivery + relief + late
        ragged.key[_RELATIVE, i] = total / rows


@inlined
def _sort_lanes(ragged, ordering):
    """Insertion sort by value descending, tick and slot ascending, from the previous shape's order, which is close."""
    order = ragged.order[ordering]
    key = ragged.key[ordering]
    ticks = ragged.ticks
    for k in range(1, len(order)):
        lane = order[k]
        value = key[lane]
        j = k
        while j > 0:
            other = order[j - 1]
            if key[other] > value:
                break
            if key[other] == value and (ticks[other], other) < (ticks[lane], lane):
                break
            order[j] = other
            j -= 1
        order[j] = lane


@inlined
def _repeats_earlier(order, ordering, most):
    """Whether an earlier ordering starts with the same lanes, so that its prefixes were the same."""
    for earlier in range(ordering):
        k = 0
        while k < most and order[earlier, k] == order[ordering, k]:
            k += 1
        if k == most:
            return True
    return False


@inlined
def _drafts_before(ragged, estimator, lane, end):
    """Drafts of a lane that stand before `end` in the ranking, within its rows."""
    drafts = 0
    while drafts < ragged.rows[lane] - 1 and ragged.place[estimator, lane, drafts] < end:
        drafts += 1
    return drafts


@inner
def _last_draft(place, drafts, order, lanes):
    """The ranking position of the cohort's last draft that has a row; there is one."""
    last = -1
    for k in range(lanes):
        lane = order[k]
        if drafts[lane] > 0:
            last = max(last, place[lane, drafts[lane] - 1])
    return last


@inlined
def _is_walked(ragged, walk, ordering, most):
    """Whether the first `most` lanes of an ordering were walked before in this order."""
    if ragged.walks.walked[walk, ordering] < most:
        return False
    walked, order = ragged.walks.order[walk, ordering], ragged.order[ordering]
    for k in range(most):
        if walked[k] != order[k]:
            return False
    return True


@inner
def _walk(ragged, walk, estimator, ordering, target_rows):
    """Token value and ranking end of every prefix of an ordering, as far as any shape of this walk reaches.

    Sums start again from the first lane that changed; those before it are the same additions as in the prefix before.
    """
    order, drafts, at = ragged.order[ordering], ragged.drafts, ragged.at
    place, token = ragged.place[estimator], ragged.token[estimator]
    rank_lane, rank_depth = ragged.rank_lane[estimator], ragged.rank_depth[estimator]
    most = ragged.walks.reach[walk]
    sums, terms = ragged.sums, ragged.terms
    sums[0] = 0.0
    for i in range(len(drafts)):
        drafts[i] = 0
    end = ragged.ranked[estimator]
    taken = 0
    for lanes in range(1, most + 1):
        lane = order[lanes - 1]
        own = 0
        while own < ragged.rows[lane] - 1 and place[lane, own] < end:
            own += 1
        drafts[lane], at[lane], terms[lanes - 1] = own, lanes - 1, token[lane, 1 + own]
        taken += own
        changed = lanes - 1
        while taken > target_rows - lanes:
            end = _last_draft(place, drafts, order, lanes) if lanes <= _FEW else end - 1
            loser = rank_lane[end]
            if drafts[loser] == rank_depth[end]:  # lanes outside the cohort have no drafts
                drafts[loser] -= 1
                taken -= 1
                terms[at[loser]] = token[loser, 1 + drafts[loser]]
                changed = min(changed, at[loser])
        for k in range(changed, lanes):
            sums[k + 1] = sums[k] + terms[k]
        ragged.walks.order[walk, ordering, lanes - 1] = lane
        ragged.walks.token[walk, ordering, lanes - 1] = sums[lanes]
        ragged.walks.end[walk, ordering, lanes - 1] = end
    ragged.walks.walked[walk, ordering] = most


@inlined
def _best_prefix(ragged, walk, ordering, most, horizon_ms, wait_cost):
    """(score, lanes) of the best prefix of an ordering; equal scores go to more lanes."""
    order, token = ragged.order[ordering], ragged.walks.token[walk, ordering]
    best_score, best_lanes = -np.inf, 0
    delivery = 0.0
    relief = 0.0
    late = 0.0
    for k in range(most):
        delivery += ragged.fixed_value[_DELIVERY, order[k]]
        relief += ragged.fixed_value[_RELIEF, order[k]]
        late += ragged.fixed_value[_LATE, order[k]]
        score = token[k] + delivery + relief + late
        if horizon_ms > 0.0:
            score = score / horizon_ms - wait_cost
        if score >= best_score:
            best_score, best_lanes = score, k + 1
    return best_score, best_lanes
