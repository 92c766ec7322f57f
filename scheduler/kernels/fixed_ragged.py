"""Ragged rounds of a fixed width (S2, S4): the cohort of highest total value that fits B lanes and P rows, exactly.

Dynamic programming over the lanes in slot order. A cell stands for a number of lanes and a number of rows, both exact,
and keeps the total of its best cohort, added from 0.0 in slot order, with the cohort as bits. Few cells are reachable:
most lanes use the full width.
"""

from __future__ import annotations

import numpy as np

from scheduler.kernels.context import decode_value, rows_of
from scheduler.kernels.jit import allocating, inner
from scheduler.kernels.ragged import has_room

_BITS = 62
"""Lanes in one word of a cohort, the first lane in the highest bit: of two cohorts of one size the larger word has the
smaller slots."""


@allocating
def fixed_ragged(world, ragged, graph):
    """The best cohort of one fixed ragged shape: its lane count; 0 without lanes.

    Writes slots and rows in slot order behind the cohort pool's used entries; the caller takes them into use, prices
    them and counts one priced cohort. A pool that is too small sets overflow and gives 0.
    """
    lanes = len(ragged.slots)
    most_lanes = min(world.graphs[graph]["batch"], world.graphs[graph]["rows"], lanes)
    most_rows = world.graphs[graph]["rows"]
    if most_lanes == 0 or not has_room(world, most_lanes):
        return 0
    values = np.empty(lanes)
    horizon_ms = world.graphs[graph]["duration_ns"] / 1e6
    wanted = 0
    for i in range(lanes):
        ragged.rows[i] = rows_of(world, ragged.slots[i], graph)
        values[i] = decode_value(world, ragged.slots[i], graph, ragged.rows[i], horizon_ms)
        wanted += ragged.rows[i]
    if lanes == most_lanes and wanted <= most_rows:  # values are 0 or more, and of equal totals more lanes win
        cohort = np.full(_words(lanes), -1, np.int64)
    else:
        cohort = _best_cohort(values, ragged.rows, ragged.ticks, most_lanes, most_rows)
    first = world.decision[0]["pooled"]
    count = 0
    for i in range(lanes):
        if _holds(cohort, i):
            world.pool[0, first + count] = ragged.slots[i]
            world.pool[1, first + count] = ragged.rows[i]
            count += 1
    return count


@inner
def _words(lanes):
    return (lanes + _BITS - 1) // _BITS


@inner
def _holds(cohort, lane):
    return cohort[lane // _BITS] >> (_BITS - 1 - lane % _BITS) & 1 == 1


@allocating
def _best_cohort(values, rows, ticks, most_lanes, most_rows):
    """The bits of the best cohort over all cells: highest total, most lanes, smallest ticks, most rows, first slots."""
    words = _words(len(values))
    totals = np.full((most_lanes + 1, most_rows + 1), -1.0)  # -1.0: not reachable
    cohorts = np.zeros((most_lanes + 1, most_rows + 1, words), np.int64)
    by_tick = _by_tick(ticks)
    totals[0, 0] = 0.0
    # Rows of a cell's cohort stay within those of the widest and the narrowest lanes seen so far.
    narrow, wide = np.zeros(most_lanes + 1, np.int64), np.zeros(most_lanes + 1, np.int64)
    trial = np.zeros(words, np.int64)
    for i in range(len(values)):
        word, bit = i // _BITS, 1 << (_BITS - 1 - i % _BITS)
        for count in range(min(i + 1, most_lanes), 0, -1):
            for used in range(narrow[count - 1], min(wide[count - 1], most_rows - rows[i]) + 1):
                before = totals[count - 1, used]
                if before < 0.0:
                    continue
                total, cell = before + values[i], used + rows[i]
                if total < totals[count, cell]:
                    continue
                trial[:] = cohorts[count - 1, used]
                trial[word] |= bit
                if total > totals[count, cell] or _comes_first(trial, cohorts[count, cell], ticks, by_tick):
                    totals[count, cell] = total
                    cohorts[count, cell] = trial
        _widen(narrow, wide, rows[i], min(i, most_lanes), most_lanes)
    return _best_cell(totals, cohorts, ticks, by_tick)


@inner
def _widen(narrow, wide, rows, count, most_lanes):
    """Row bounds of each lane count after one more lane; `count` lanes were bounded before."""
    for k in range(min(count + 1, most_lanes), 0, -1):
        if k == count + 1:
            narrow[k], wide[k] = narrow[k - 1] + rows, wide[k - 1] + rows
        else:
            narrow[k] = min(narrow[k], narrow[k - 1] + rows)
            wide[k] = max(wide[k], wide[k - 1] + rows)


@allocating
def _best_cell(totals, cohorts, ticks, by_tick):
    """Cells in the order of lanes and rows descending, so that a later one wins only by value, ticks or slots."""
    count, used = 0, 0
    for k in range(totals.shape[0] - 1, 0, -1):
        for r in range(totals.shape[1] - 1, 0, -1):
            if totals[k, r] < 0.0 or totals[k, r] < totals[count, used]:
                continue
            better = count == 0 or totals[k, r] > totals[count, used]
            if not better and k == count:
                better = _fewer_ticks(cohorts[k, r], cohorts[count, used], ticks, by_tick) > 0
            if better:
                count, used = k, r
    return cohorts[count, used]


@inner
def _comes_first(a, b, ticks, by_tick):
    """Whether of two cohorts of equal size, rows and total, `a` wins: smaller sorted ticks, then smaller slots."""
    order = _fewer_ticks(a, b, ticks, by_tick)
    if order != 0:
        return order > 0
    for word in range(len(a)):
        if a[word] != b[word]:
            return a[word] > b[word]
    return False


@inner
def _fewer_ticks(a, b, ticks, by_tick):
    """1 where cohort a's sorted ticks come first, -1 where b's do, 0 where they are equal. Sizes are equal."""
    ahead = 0
    for k in range(len(by_tick)):
        lane = by_tick[k]
        if k > 0 and ahead != 0 and ticks[lane] != ticks[by_tick[k - 1]]:
            break
        if _holds(a, lane):
            ahead += 1
        if _holds(b, lane):
            ahead -= 1
    if ahead == 0:
        return 0
    return 1 if ahead > 0 else -1


@allocating
def _by_tick(ticks):
    """Lanes by tick ascending."""
    order = np.arange(len(ticks))
    for k in range(1, len(order)):
        lane, j = order[k], k
        while j > 0 and ticks[order[j - 1]] > ticks[lane]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = lane
    return order
