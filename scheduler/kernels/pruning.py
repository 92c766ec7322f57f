"""Padding pruning (S4): a candidate is barred where a smaller graph serves the same lanes. Timing plays no part."""

from __future__ import annotations

import numpy as np

from scheduler import layout
from scheduler.kernels.context import MARKS
from scheduler.kernels.jit import allocating, inner
from scheduler.kernels.table import graph_hash, identity, lane_hash

_BUCKETS = 256


@allocating
def prune(world):
    """Bars the redundant ones among the candidates found; candidates of prefill kinds are left alone."""
    found = world.decision[0]["found"]
    heads, tails = np.full(_BUCKETS, -1, np.int64), np.full(_BUCKETS, -1, np.int64)
    following = np.empty(found, np.int64)
    for c in range(found):
        if _takes_part(world, c):
            if world.candidates[c]["hash"] == 0:
                world.candidates[c]["hash"] = _hash(world, c)
            bucket = world.candidates[c]["hash"] % _BUCKETS
            following[c] = -1
            if tails[bucket] < 0:
                heads[bucket] = c
            else:
                following[tails[bucket]] = c
            tails[bucket] = c
    for bucket in range(_BUCKETS):
        x = heads[bucket]
        if x >= 0 and following[x] >= 0:
            _prune_bucket(world, heads[bucket], following)


@inner
def _prune_bucket(world, head, following):
    """Compares every two candidates of one bucket. What is pruned still prunes others."""
    x = head
    while x >= 0:
        y = head
        while y >= 0:
            if x != y and _is_redundant(world, x, y):
                world.candidates[x]["barred"] = layout.PRUNED
                break
            y = following[y]
        x = following[x]


@inner
def _takes_part(world, c):
    row = world.candidates[c]
    kind = world.graphs[row["graph"]]["kind"]
    if kind == layout.KIND_PREFILL or kind == layout.KIND_SCORED_PREFILL:
        return False
    return row["barred"] == layout.NOT_BARRED


@inner
def _hash(world, c):
    """Of what two candidates must share for one to prune the other; the order of the lanes does not matter."""
    row = world.candidates[c]
    hashed = graph_hash(world.graphs[row["graph"]])
    hashed += _lane_hash(world, row["first"], row["lanes"])
    if row["following"] >= 0:
        hashed += 3 * graph_hash(world.graphs[row["following"]])
        hashed += 5 * _lane_hash(world, row["following_first"], row["following_lanes"])
    return hashed


@inner
def _lane_hash(world, first, count):
    hashed = 0
    for i in range(first, first + count):
        hashed += lane_hash(world.pool[0, i], world.pool[1, i])
    return hashed


@inner
def _is_redundant(world, x, y):
    """Whether y serves the same with no larger and one smaller extent."""
    a, b = world.candidates[x], world.candidates[y]
    if a["hash"] != b["hash"]:
        return False
    same_graph, same_following = a["graph"] == b["graph"], a["following"] == b["following"]
    if same_graph == same_following:  # nothing differs, or both graphs do
        return False
    if same_following:
        if not _is_smaller(world, a["graph"], b["graph"]):
            return False
    else:
        if a["following"] < 0 or b["following"] < 0 or not _is_smaller(world, a["following"], b["following"]):
            return False
        kind = world.graphs[a["following"]]["kind"]
        if kind == layout.KIND_PREFILL or kind == layout.KIND_SCORED_PREFILL:
            return False
    if a["prompt_tokens"] != b["prompt_tokens"] or a["prompts"] != b["prompts"]:
        return False
    if a["lanes"] != b["lanes"] or a["following_lanes"] != b["following_lanes"]:
        return False
    if not _same_lanes(world, a["first"], b["first"], a["lanes"]):
        return False
    return _same_lanes(world, a["following_first"], b["following_first"], a["following_lanes"])


@inner
def _is_smaller(world, x, y):
    """Graph y has x's identity, no larger B, W, P, C and R, and one smaller."""
    a, b = world.graphs[x], world.graphs[y]
    if identity(a) != identity(b):
        return False
    if b["batch"] > a["batch"] or b["width"] > a["width"] or b["rows"] > a["rows"] or b["prompt"] > a["prompt"]:
        return False
    if b["prompt_rows"] != a["prompt_rows"]:
        return b["prompt_rows"] < a["prompt_rows"]
    return b["batch"] < a["batch"] or b["width"] < a["width"] or b["rows"] < a["rows"] or b["prompt"] < a["prompt"]


@inner
def _same_lanes(world, a, b, count):
    """Whether two stretches of the pool hold the same slots with the same rows, in any order."""
    marks, pool = world.scratch[MARKS], world.pool
    same = 0
    while same < count and pool[0, a + same] == pool[0, b + same] and pool[1, a + same] == pool[1, b + same]:
        same += 1
    if same == count:
        return True
    for i in range(a, a + count):
        marks[pool[0, i]] = 0
    for i in range(b, b + count):
        marks[pool[0, i]] = pool[1, i]
    for i in range(a, a + count):
        if marks[pool[0, i]] != pool[1, i]:
            return False
    return True
