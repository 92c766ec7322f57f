"""Acceptance estimates (S3): observations, ageing, and the survival and yields that decisions read.

Arrays, with S slots and D the largest draft depth of the catalog:
estimates[S, source, estimator, D, (mean, weight)], prior[source, D], pool[source, (first, later), (mean, weight)] (what
verification found in all requests: the chance p of a first draft, and q of one whose predecessor was accepted),
survival[S, estimator, D] (running minimum of the active source's means), yields[S, estimator, (raw, score, optimistic),
D + 2] (index r: expected output tokens of r rows; index 0 is unused), decay[n] = 2^(-n/128).
"""

from __future__ import annotations

import math

from scheduler.kernels.jit import inner
from scheduler.layout import (
    ACCEPTANCE,
    ALLOCATE_DEVICE,
    DID_ACCEPT,
    DID_EMIT,
    DID_OFFER,
    FIRST,
    FORECAST,
    LATER,
    LEARNED,
    MEAN,
    WEIGHT,
    YIELD_OPTIMISTIC,
    YIELD_RAW,
    YIELD_SCORE,
)

START_WEIGHT = 2.0
MOST_WEIGHT = 128.0
LEAST_WEIGHT = 2.0**-20
PRIOR_SHARE = 64.0
POOLED_START_WEIGHT = 8.0
MOST_POOL_WEIGHT = 256.0
LN20 = math.log(20.0)


@inner
def start_pooled(slot, estimates, pool):
    """ACCEPTANCE of both sources begins at p * q^(d - 1), also at depths that were never offered, with weight 8."""
    for source in range(2):
        mean = pool[source, FIRST, MEAN]
        for d in range(estimates.shape[3]):
            estimates[slot, source, ACCEPTANCE, d, MEAN] = mean
            estimates[slot, source, ACCEPTANCE, d, WEIGHT] = POOLED_START_WEIGHT
            mean *= pool[source, LATER, MEAN]


@inner
def start_estimates(slot, pooled, estimates, prior, pool):
    """Both estimators of both sources begin at the source's prior with weight 2; ACCEPTANCE at the pool if `pooled`."""
    for source in range(2):
        for estimator in range(2):
            for d in range(prior.shape[1]):
                estimates[slot, source, estimator, d, MEAN] = prior[source, d]
                estimates[slot, source, estimator, d, WEIGHT] = START_WEIGHT
    if pooled == 1:
        start_pooled(slot, estimates, pool)


@inner
def age_estimates(slot, emitted, estimates, decay):
    """Multiplies every weight of the request by 2^(-emitted/128), keeping at least 2^-20."""
    factor = decay[emitted]
    for source in range(2):
        for estimator in range(2):
            for d in range(estimates.shape[3]):
                weight = estimates[slot, source, estimator, d, WEIGHT] * factor
                estimates[slot, source, estimator, d, WEIGHT] = max(weight, LEAST_WEIGHT)


@inner
def add_observation(slot, source, estimator, d, value, estimates):
    """weight = min(128, weight + 1); mean += (value - mean) / weight."""
    weight = min(MOST_WEIGHT, estimates[slot, source, estimator, d, WEIGHT] + 1.0)
    mean = estimates[slot, source, estimator, d, MEAN]
    estimates[slot, source, estimator, d, WEIGHT] = weight
    estimates[slot, source, estimator, d, MEAN] = mean + (value - mean) / weight


@inner
def observe_verified(lane, did, survival_rows, estimates):
    """ACCEPTANCE: accepted depths 1, rejected ones 0, nothing where termination censored; survival rows replace."""
    slot, source = lane["slot"], lane["source"]
    accepted = did[DID_ACCEPT]
    rejected = did[DID_EMIT] == accepted + 1
    for d in range(did[DID_OFFER]):
        value = math.nan
        if d < accepted:
            value = 1.0
        elif rejected:
            value = 0.0
        if survival_rows.shape[0] > 0 and not math.isnan(survival_rows[slot, d]):
            value = survival_rows[slot, d]
        if not math.isnan(value):
            add_observation(slot, source, ACCEPTANCE, d, value, estimates)


@inner
def observe_pool(source, did, pool):
    """Each accepted draft, and the one that was rejected; what lies behind it or behind an end says nothing."""
    accepted = did[DID_ACCEPT]
    seen = accepted
    if did[DID_EMIT] == accepted + 1:
        seen = min(accepted + 1, did[DID_OFFER])
    for d in range(seen):
        place = FIRST if d == 0 else LATER
        value = 1.0 if d < accepted else 0.0
        weight = min(MOST_POOL_WEIGHT, pool[source, place, WEIGHT] + 1.0)
        mean = pool[source, place, MEAN]
        pool[source, place, WEIGHT] = weight
        pool[source, place, MEAN] = mean + (value - mean) / weight


@inner
def observe_forecast(lane, depth, confidence, estimates, prior):
    """FORECAST and the prior from the joint confidence[slot, d - 1] of depths 1..min(D, ceiling - 1)."""
    slot = lane["slot"]
    for d in range(min(depth, lane["ceiling"] - 1)):
        value = float(confidence[slot, d])
        add_observation(slot, LEARNED, FORECAST, d, value, estimates)
        prior[LEARNED, d] += (value - prior[LEARNED, d]) / PRIOR_SHARE


@inner
def observe_lane(lane, did, graph, survival_rows, confidence, estimates, prior, pool, decay):
    """One completed lane that emitted output, in the order of S3: ageing, ACCEPTANCE, the pool, FORECAST, the prior.

    A device chooses a round's drafts by their confidence, so that its rounds say nothing of drafts in general.
    """
    depth = graph["depth"]
    age_estimates(lane["slot"], did[DID_EMIT], estimates, decay)
    if lane["source"] >= 0 and depth > 0:
        observe_verified(lane, did, survival_rows, estimates)
        if graph["allocation"] != ALLOCATE_DEVICE:
            observe_pool(lane["source"], did, pool)
    if lane["source"] == LEARNED and confidence.shape[0] > 0:
        observe_forecast(lane, depth, confidence, estimates, prior)


@inner
def power(value, previous, previous_power, alpha):
    """value^alpha; pow only when alpha is not 1 and the value is another than at the depth before."""
    if alpha == 1.0 or value == 1.0:
        return value
    if value == previous:
        return previous_power
    return value**alpha


@inner
def rebuild_survival(means, survival, yields, alpha):
    """survival[D], and the raw and score rows of yields[3, D + 2], from one estimator's means[D, (mean, weight)]."""
    run = run_power = 1.0
    raw_sum = score_sum = 0.0
    yields[YIELD_RAW, 1] = yields[YIELD_SCORE, 1] = 1.0
    for d in range(means.shape[0]):
        lowest = min(run, means[d, MEAN])
        run_power = power(lowest, run, run_power, alpha)
        run = lowest
        survival[d] = run
        raw_sum += run
        score_sum += run_power
        yields[YIELD_RAW, d + 2] = 1.0 + raw_sum
        yields[YIELD_SCORE, d + 2] = 1.0 + score_sum


@inner
def rebuild_optimistic(means, yields, alpha):
    """The optimistic row of yields[3, D + 2]: the upper confidence bound of each mean, as far as its weight allows."""
    run = run_power = 1.0
    total = 0.0
    yields[YIELD_OPTIMISTIC, 1] = 1.0
    for d in range(means.shape[0]):
        lowest = min(run, means[d, MEAN] + math.sqrt(LN20 / (2.0 * means[d, WEIGHT])))
        run_power = power(lowest, run, run_power, alpha)
        run = lowest
        total += run_power
        yields[YIELD_OPTIMISTIC, d + 2] = 1.0 + total


@inner
def rebuild_slot(slot, source, estimates, survival, yields, alpha):
    """Every derived table of a slot for its active source; without a source the learned one's."""
    for estimator in range(2):
        means = estimates[slot, max(source, LEARNED), estimator]
        rebuild_survival(means, survival[slot, estimator], yields[slot, estimator], alpha)
        rebuild_optimistic(means, yields[slot, estimator], alpha)


@inner
def rebuild_observed(lane, active, optimistic, confidence, estimates, survival, yields, alpha):
    """What observe_lane changed of a slot's tables; ageing alone moves only the optimistic ones, kept up on request."""
    slot, source = lane["slot"], max(active, LEARNED)
    means, slot_yields = estimates[slot, source], yields[slot]
    rebuild_survival(means[ACCEPTANCE], survival[slot, ACCEPTANCE], slot_yields[ACCEPTANCE], alpha)
    if confidence.shape[0] > 0:
        rebuild_survival(means[FORECAST], survival[slot, FORECAST], slot_yields[FORECAST], alpha)
    if optimistic == 1:
        rebuild_optimistic(means[ACCEPTANCE], slot_yields[ACCEPTANCE], alpha)
        rebuild_optimistic(means[FORECAST], slot_yields[FORECAST], alpha)
