"""A seeded scenario: the settings of a load and how the world behaves. Nothing here looks at a scheduler's answers."""

from __future__ import annotations

import dataclasses
import random

from scheduler.policy import ACCEPTANCE_MODELS, PolicyConfig
from scheduler.records import ImageSpan, RequestSpec
from scheduler.shapes import GraphKind, GraphShape
from tests.scheduler.differential.catalogs import fuller_graphs, learning_catalog, ragged_catalog, random_catalog

MS = 1_000_000
INTERACTIVE = {
    "prompt_wait_price": 1000.0,
    "prompt_rank_age_ms": 30.0,
    "decode_gap_weight": 0.7,
    "decode_late_price": 300.0,
    "decode_cadence": "on",
}


@dataclasses.dataclass
class Scenario:
    """`durations`: true ns of each shape. `rates`: probability of each command between two plans.

    `level`: every round teaches that the first draft survives half of the time, and the others whenever it does.
    `slow_host`: ordinary rounds that run alone take a second of wall time, which fills the ledgers.
    `preferring`: policies have preferences beyond the specification, and requests have waited before they come.
    """

    seed: int
    rng: random.Random
    shapes: list[GraphShape]
    verification: str
    policy: PolicyConfig
    request_slots: int
    residents: int
    fraction: float
    image_feature_rows: int
    durations: dict[GraphShape, int]
    measured: bool
    noisy: bool
    acceptance: float
    sidecars: bool
    resources: bool
    rates: dict[str, float]
    admitted: int = 0
    level: bool = False
    slow_host: bool = False
    preferring: bool = False

    @property
    def kinds(self):
        return {shape.kind for shape in self.shapes}


def any_scenario(seed: int) -> Scenario:
    """One of the specification alone, then one of several prompt rows and further preferences, in turn."""
    return preferring_scenario(seed // 2) if seed % 2 else make_scenario(seed // 2)


def make_scenario(seed: int) -> Scenario:
    rng = random.Random(seed)
    residents = rng.choice((1, 1, 2, 3, 4, 6, 8, 12)) if rng.random() < 0.93 else rng.choice((24, 40, 64))
    slots = residents + rng.choice((0, 0, 1, 8))
    shapes, verification = random_catalog(rng, max(2, residents))
    dyadic = rng.random() < 0.3
    return Scenario(
        seed=seed,
        rng=rng,
        shapes=shapes,
        verification=verification,
        policy=random_policy(rng, dyadic),
        request_slots=slots,
        residents=residents,
        fraction=rng.choice((0.05, 0.05, 0.5, 2.0, 0.0)),
        image_feature_rows=rng.choice((0, 2, 3)),
        durations=random_durations(rng, shapes, dyadic),
        measured=rng.random() < 0.7,
        noisy=not dyadic,
        acceptance=rng.choice((0.0, 0.5, 0.8, 1.0)),
        sidecars=rng.random() < 0.4,
        resources=rng.random() < 0.5,
        rates=random_rates(rng),
    )


def preferring_scenario(seed: int) -> Scenario:
    """Graphs of several prompts, and preferences beyond the specification from small to large."""
    scenario = make_scenario(seed)
    rng, width = scenario.rng, int(scenario.verification.removeprefix("fixed:").replace("adaptive", "0"))
    residents = max(scenario.residents, rng.choice((3, 5, 8)))
    fuller = fuller_graphs(rng, scenario.shapes, width, 2 * residents)
    shapes = list(dict.fromkeys([*fuller, *scenario.shapes]))
    return dataclasses.replace(
        scenario,
        shapes=shapes,
        policy=scenario.policy.merged(random_preferences(rng) | {"acceptance_model": ACCEPTANCE_MODELS[seed % 2]}),
        request_slots=max(scenario.request_slots, residents),
        residents=residents,
        durations=random_durations(rng, fuller, not scenario.noisy) | scenario.durations,
        preferring=True,
    )


def level_scenario(seed: int) -> Scenario:
    """Ragged rounds whose drafts tie: those of every depth that was learned, and the first of every request."""
    scenario = make_scenario(seed)
    rng = scenario.rng
    residents = rng.choice((2, 3, 4, 6))
    shapes = ragged_catalog(rng, residents)
    return dataclasses.replace(
        scenario,
        shapes=shapes,
        verification="adaptive",
        request_slots=residents,
        residents=residents,
        durations=random_durations(rng, shapes, True),
        measured=True,
        noisy=False,
        resources=False,
        sidecars=True,
        level=True,
    )


def pooled_scenario(seed: int) -> Scenario:
    """Many short requests, each of which starts from what verification found in those before it."""
    scenario = make_scenario(seed)
    rng = scenario.rng
    residents = rng.choice((2, 3, 4))
    shapes = learning_catalog(rng, residents) if seed % 2 else ragged_catalog(rng, residents)
    return dataclasses.replace(
        scenario,
        shapes=shapes,
        verification="adaptive",
        policy=scenario.policy.merged({"acceptance_model": "pooled"}),
        request_slots=residents,
        residents=residents,
        durations=random_durations(rng, shapes, True),
        measured=True,
        acceptance=rng.choice((0.5, 0.8)),
        resources=False,
        rates=scenario.rates | {"policy": 0.0},
    )


def learning_scenario(seed: int) -> Scenario:
    """Acceptance probes every few plans, by a host that is slow around ordinary rounds; nothing goes stale."""
    scenario = make_scenario(seed)
    rng = scenario.rng
    residents = rng.choice((2, 3, 4))
    shapes = learning_catalog(rng, residents)
    return dataclasses.replace(
        scenario,
        shapes=shapes,
        verification="adaptive",
        policy=dataclasses.replace(scenario.policy, estimate_ttl_ns=10**15),
        request_slots=residents,
        residents=residents,
        durations={shape: rng.choice((4, 8, 10, 12)) * MS for shape in shapes},
        measured=True,
        acceptance=rng.choice((0.0, 0.5, 0.8)),
        resources=False,
        rates=dict.fromkeys(scenario.rates, 0.0),
        slow_host=True,
    )


def random_durations(rng, shapes, dyadic):
    """Long graphs in some scenarios, so that both ledgers fill within a few dozen of them."""
    scale = rng.choice((1, 1, 10, 60))
    if dyadic:
        return {shape: rng.choice((1, 2, 4, 8, 16)) * scale * MS for shape in shapes}
    return {shape: max(1, round(scale * MS * (1 + shape.physical_rows / 64) * rng.uniform(0.2, 3))) for shape in shapes}


def random_policy(rng, dyadic):
    def one(usual, *others):
        return usual if rng.random() < 0.6 else rng.choice(others)

    return PolicyConfig(
        output_token_value=one(64.0, 0.0, 1.0, 1e300) if not dyadic else rng.choice((0.0, 1.0, 64.0)),
        token_fairness=one(16.0, 0.0, 1.0, 200.0),
        delivery_fairness=one(4.0, 0.0, 50.0),
        decode_age_price=one(0.1, 0.0, 0.5, 5.0),
        terminal_value=one(256.0, 0.0, 1.0),
        terminal_age_price=one(1.0, 0.0, 0.125),
        adaptation_ms=one(100.0, 1.0, 5000.0),
        estimate_ttl_ns=one(30_000 * MS, 20 * MS, 300 * MS, 2_000 * MS),
        adaptive_verification_alpha=one(1.0, 0.6, 1.5),
        prefill_chunking=one("measured", "deterministic"),
        newcomer_memory=rng.choice(("deprived", "deprived", "decode", "phase", "fair_share")),
    )


def random_preferences(rng):
    """Preferences beyond the specification: those of one preset, or each for itself, off or from small to large."""
    if rng.random() < 0.25:
        return INTERACTIVE
    return {
        "prompt_wait_price": rng.choice((0.0, 0.01, 1.0, 1000.0, 1000.0, 1e6, 1e300)),
        "prompt_rank_age_ms": rng.choice((0.0, 0.0, 30.0, 1e4, 1e300)),
        "decode_gap_weight": rng.choice((0.0, 0.1, 0.7, 3.0, 1e300)),
        "decode_late_price": rng.choice((0.0, 0.0, 0.001, 1.0, 300.0, 1e5, 1e300)),
        "decode_cadence": rng.choice(("off", "on")),
        "token_budget": rng.choice((0, 0, 0, 0, 0, 1, 64, 100, 512, 5000)),
    }


def random_rates(rng):
    """How busy the commands are; quiet scenarios reach deep histories."""
    busy = rng.choice((0.0, 0.3, 1.0, 1.0, 2.0))
    return {
        "cancel": 0.02 * busy,
        "preempt": 0.03 * busy,
        "offer": 0.15 * busy,
        "policy": 0.02 * busy,
        "resources": 0.3 * busy,
        "jump": 0.05 * busy,
        "stale": 0.08 * busy,
        "wrong": 0.1 * busy,
        "restart": 0.02 * busy,
        "victim": 0.05 * busy,
        "observe": 0.02 * busy,
        "end": 0.02 * busy,
    }


def random_spec(scenario: Scenario) -> RequestSpec:
    """The next request; some contradict the catalog and are refused by both sides."""
    rng = scenario.rng
    scenario.admitted += 1
    prompt = rng.choice((1, 16, 50, 64, 65, 128, 200, 300, 700, 1500))
    output = rng.choice((1, 2, 4, 8, 20, 40, 100))
    cached = rng.randrange(prompt) if rng.random() < 0.2 else 0
    images = random_images(rng, prompt) if GraphKind.VISION in scenario.kinds and rng.random() < 0.5 else ()
    return RequestSpec(
        request_id=f"r{scenario.admitted}" if rng.random() < 0.97 else f"r{max(1, scenario.admitted - 1)}",
        prompt_tokens=prompt,
        max_output_tokens=output,
        context_capacity=prompt + rng.choice((1, output, output, 200)) if rng.random() < 0.99 else prompt,
        cached_tokens=cached,
        message_boundaries=random_boundaries(rng, prompt),
        atomic_spans=random_spans(rng, prompt),
        images=images,
        grammar=rng.random() < 0.08,
        host_stop=rng.random() < 0.08,
        host_fed=rng.random() < 0.05,
        proposal_sources=rng.choice((("learned", "copy"), ("learned", "copy"), ("learned",), ("copy",), ())),
        scored=GraphKind.SCORED_PREFILL in scenario.kinds and rng.random() < 0.3,
        restoring=rng.random() < 0.06,
        continues=f"r{rng.randint(1, scenario.admitted)}" if rng.random() < 0.1 else None,
        waited_ns=rng.choice((0, 0, 3 * MS, 3 * MS, 400 * MS, 2**53)) if scenario.preferring else 0,
    )


def random_boundaries(rng, prompt):
    if prompt < 8 or rng.random() < 0.5:
        return ()
    return tuple(sorted(rng.sample(range(1, prompt + 1), rng.randint(1, 4))))


def random_spans(rng, prompt):
    if prompt < 8 or rng.random() < 0.7:
        return ()
    return disjoint(rng, prompt, rng.randint(1, 2), 60)


def random_images(rng, prompt):
    if prompt < 8:
        return ()
    return tuple(ImageSpan(a, b, rng.choice((1, 1, 2))) for a, b in disjoint(rng, prompt, rng.randint(1, 4), 30))


def disjoint(rng, prompt, count, longest):
    ends, found = sorted(rng.sample(range(prompt + 1), min(prompt + 1, 2 * count))), []
    for first, end in zip(ends[::2], ends[1::2], strict=False):
        found.append((first, min(end, first + longest)))
    return tuple(found)
