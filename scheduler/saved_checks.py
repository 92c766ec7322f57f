"""Whether a checkpoint's parts are in range and fit each other, its settings and its catalog.

A checkpoint can come from a stranger's database, with a checksum that is right. Compiled kernels check nothing: so
whatever they index, count or divide by, and whatever Python would stumble over later, is looked at here, before
anything is made of it. What is only shown to people (a plan's score and parts) is left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.admission import Capabilities, checked_prompt
from scheduler.capacity import select
from scheduler.catalog import MAX_DURATION_NS, WINDOW_SAMPLES, Catalog
from scheduler.checks import MAX_TIME_NS, whole
from scheduler.commitment import FRAME_SLOTS, MAX_FENCE
from scheduler.errors import AdmissionError, InvalidCatalog, InvalidCheckpoint
from scheduler.ledgers import ACCEPTANCE_DENOMINATOR, CAP_NS, TIMING_DENOMINATOR
from scheduler.plans import Reason
from scheduler.prompts import Prompt
from scheduler.records import LONGEST_WAIT_NS, MAX_TOKENS, RequestSpec
from scheduler.saved import Saved, array_forms
from scheduler.saved_requests import check_frame, check_tenant
from scheduler.shapes import MAX_TARGET_WIDTH

Array = npt.NDArray[Any]
Range = tuple[float, float]

_MOST = 2**62
"""Of counters: what is added to one still is a 64-bit integer."""
_TIME: Range = (-MAX_TIME_NS, MAX_TIME_NS + 4 * MAX_DURATION_NS)  # expected ends lie ahead of the clock
_SWITCH: Range = (0, 1)
_TOKENS: Range = (0, MAX_TOKENS)
_COUNT: Range = (0, _MOST)
_MEMORY: Range = (0.0, 1e12)
_RATE: Range = (0.0, 1e300)
_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-20, 128.0
_POOL_WEIGHT: Range = (2.0, 256.0)

SLOT_RANGES: dict[str, Range] = {
    "stage": (layout.FREE, layout.WAITING),
    "generation": _COUNT,
    "cancelled": _SWITCH,
    "retiring": _SWITCH,
    "scored": _SWITCH,
    "prompt_tokens": _TOKENS,
    "consumed": _TOKENS,
    "segment_end": _TOKENS,
    "emitted": _TOKENS,
    "output_limit": _TOKENS,
    "in_flight": (0, FRAME_SLOTS),
    "pending": (0, FRAME_SLOTS * MAX_TARGET_WIDTH),
    "source": (layout.NO_SOURCE, layout.COPY),
    "drafts": (0, layout.UNBOUNDED),
    "feedback": _SWITCH,
    "images_left": _TOKENS,
    "window": _SWITCH,
    "window_images": _TOKENS,
    "admitted": _COUNT,
    "arrived_ns": (-LONGEST_WAIT_NS, MAX_TIME_NS),
    "blocks": _SWITCH,
    "last_served_tick": _COUNT,
    "epoch": _COUNT,
    "last_visible_ns": _TIME,
    "terminal_since_ns": _TIME,
    "pages_held": (0, layout.UNBOUNDED),
    "token_memory": _MEMORY,
    "delivery_memory": _MEMORY,
    "view_token_memory": _MEMORY,
    "view_delivery_memory": _MEMORY,
    "view_visible_ns": _TIME,
    "decode_earned_ms": (0.0, float("inf")),
}
FRAME_RANGES: dict[str, Range] = {
    "fence": (0, MAX_FENCE),
    "reason": (0, len(Reason) - 1),
    "known": _SWITCH,
    "selected_cost_ns": (0, MAX_DURATION_NS),
    "queued": _SWITCH,
    "committed_ns": _TIME,
    "expected_end_ns": _TIME,
    "completed_ns": _TIME,
    "interval_ms": (0.0, MAX_DURATION_NS / 1e6),
}
"""But `graph` and `lanes`, whose ranges are the catalog's and the slots'."""
PARTICIPANT_RANGES: dict[str, Range] = {
    "generation": _COUNT,
    "unpublished": (0, 2),
    "open": _SWITCH,
    "token_rate": _RATE,
    "delivery_rate": _RATE,
    "delivery_before": _MEMORY,
    "served": (0.0, 2.0 * MAX_TOKENS),
    "delivers": _SWITCH,
}
_MAY_BE_MISSING = frozenset(
    {
        "token_memory",
        "delivery_memory",
        "view_token_memory",
        "view_delivery_memory",
        "token_rate",
        "delivery_rate",
        "delivery_before",
    }
)
"""Fields in which NaN stands for no value."""


def check(saved: Saved, catalog: Catalog) -> None:
    """Raises InvalidCheckpoint, which says what does not fit."""
    can = _capabilities(saved, catalog)
    arrays = _sized(saved, catalog)
    _check_totals(saved)
    _check_estimates(saved, catalog)
    _check_records(arrays, len(catalog.shapes))
    _check_acceptance(arrays)
    _check_requests(saved, catalog, can, arrays)
    _check_queue(saved, catalog, arrays)


def misfit(what: str) -> NoReturn:
    """Raises InvalidCheckpoint."""
    raise InvalidCheckpoint(f"the checkpoint's parts do not fit each other or this catalog: {what}")


def _capabilities(saved: Saved, catalog: Catalog) -> Capabilities:
    """What the load can do; its settings must leave something of the catalog."""
    settings = saved.settings
    try:
        selection = select(catalog.shapes, settings.verification, settings.completion_token_capacity)
    except InvalidCatalog as why:
        misfit(f"its settings ({why})")
    return Capabilities.of(catalog.shapes, selection.usable, settings.image_feature_rows)


def _sized(saved: Saved, catalog: Catalog) -> dict[str, Array]:
    """The arrays, each of the size that slots and catalog ask for."""
    depth = max(1, *(shape.draft_depth for shape in catalog.shapes))
    forms = array_forms(saved.settings.request_slots, depth, len(catalog.capacities))
    if forms.keys() != saved.arrays.keys():
        misfit("the names of its arrays")
    arrays = {}
    for name, (dtype, shape) in forms.items():
        if len(saved.arrays[name]) != dtype.itemsize * int(np.prod(shape)):
            misfit(f"the size of {name}")
        arrays[name] = np.frombuffer(saved.arrays[name], dtype).reshape(shape)
    return arrays


def _check_totals(saved: Saved) -> None:
    """Clock, counters, resources and ledgers."""
    resources, ledgers = saved.resources, saved.ledgers
    fits = (
        whole(saved.now_ns, -MAX_TIME_NS, MAX_TIME_NS)
        and whole(saved.last_fence, 0, MAX_FENCE)
        and whole(saved.tick, 0, _MOST)
        and whole(saved.admissions, 0, _MOST)
        and whole(resources.free_pages, 0, layout.UNBOUNDED)
        and whole(resources.free_snapshot_rows, 0, layout.UNBOUNDED)
        and whole(resources.page_tokens, 0, layout.UNBOUNDED)
        and (resources.page_tokens == 0) == (resources.free_pages == layout.UNBOUNDED)
        and whole(ledgers.discovery_ns, 0, _MOST)
    )
    if not fits:
        misfit("its clock, counters or free resources")
    pairs = ((ledgers.timing, TIMING_DENOMINATOR), (ledgers.acceptance, ACCEPTANCE_DENOMINATOR))
    for (units, ordinary_ns, spent_ns), denominator in pairs:
        if not (whole(units, -_MOST, CAP_NS * denominator) and whole(ordinary_ns, 0, _MOST) and 0 <= spent_ns <= _MOST):
            misfit("its ledgers")


def _check_estimates(saved: Saved, catalog: Catalog) -> None:
    """One entry for each graph: measured durations with the time of the last, or neither."""
    if len(saved.estimates) != len(catalog.shapes):
        misfit("the number of its estimates")
    for samples, observed_ns, attempted_ns in saved.estimates:
        if (
            len(samples) > WINDOW_SAMPLES
            or not all(whole(sample, 1, MAX_DURATION_NS) for sample in samples)
            or not whole(observed_ns, -1, MAX_TIME_NS)
            or not whole(attempted_ns, -1, MAX_TIME_NS)
            or bool(samples) != (observed_ns >= 0)
        ):
            misfit("its estimates")


def _check_records(arrays: dict[str, Array], graphs: int) -> None:
    """Every number of every record is in its field's range; works are counts."""
    frames = FRAME_RANGES | {"graph": (0, graphs - 1), "lanes": (0, len(arrays["slots"]))}
    ranges = {"slots": SLOT_RANGES, "frames": frames, "participants": PARTICIPANT_RANGES}
    for name, fields in ranges.items():
        for field, bounds in fields.items():
            _check_range(f"{name}.{field}", arrays[name][field], bounds, field in _MAY_BE_MISSING)
    _check_range("works", arrays["works"], _TOKENS)
    participants = arrays["participants"]
    for field in ("token_rate", "delivery_rate"):
        if ((participants[field] == 0) & (participants["generation"] > 0)).any():
            misfit(f"a participant whose {field} is 0")


def _check_acceptance(arrays: dict[str, Array]) -> None:
    """Chances from 0 to 1, survival falling with depth: kernels rank drafts by it and rely on that order."""
    tables, depth = arrays["acceptance"], arrays["survival"].shape[2]
    _check_range("acceptance means", tables[..., layout.MEAN], (0.0, 1.0))
    taken = arrays["slots"]["stage"] != layout.FREE
    _check_range("acceptance weights", tables[taken][..., layout.WEIGHT], (_LEAST_WEIGHT, _MOST_WEIGHT))
    _check_range("prior", arrays["prior"], (0.0, 1.0))
    _check_range("pool means", arrays["pool"][..., layout.MEAN], (0.0, 1.0))
    _check_range("pool weights", arrays["pool"][..., layout.WEIGHT], _POOL_WEIGHT)
    _check_range("survival", arrays["survival"], (0.0, 1.0))
    _check_range("yields", arrays["yields"], (0.0, depth + 1.0))
    if (arrays["survival"][..., 1:] > arrays["survival"][..., :-1]).any():
        misfit("survival that rises with depth")


def _check_range(what: str, values: Array, bounds: Range, may_be_missing: bool = False) -> None:
    low, high = bounds
    fits = (values >= low) & (values <= high)
    if may_be_missing:
        fits |= np.isnan(values)
    if not fits.all():
        misfit(f"{what} out of its range")


def _check_requests(saved: Saved, catalog: Catalog, can: Capabilities, arrays: dict[str, Array]) -> None:
    """Occupied slots are those of the requests, each as its request and its frames make it; the others are free."""
    slots = arrays["slots"]
    numbers = [tenant.handle.slot for tenant in saved.tenants]
    names = {tenant.spec.request_id for tenant in saved.tenants}
    if not all(whole(number, 0, len(slots) - 1) for number in numbers):
        misfit("a request at a slot that is not there")
    if not len(set(numbers)) == len(numbers) == len(names):
        misfit("two requests in one slot, or of one name")
    free = np.ones(len(slots), np.bool_)
    free[numbers] = False
    if (slots["stage"][free] != layout.FREE).any() or arrays["works"][free].any() or slots["in_flight"][free].any():
        misfit("a slot that is taken without a request")
    for tenant in saved.tenants:
        number = tenant.handle.slot
        row = dict(zip(layout.SLOT.names or (), slots[number].item(), strict=True))
        _check_prompt(tenant.spec, tenant.prompt, can)
        problem = check_tenant(tenant, row, arrays["works"][number].tolist(), catalog.capacities)
        if problem is None and not (row["admitted"] <= saved.admissions and row["last_served_tick"] <= saved.tick):
            problem = "its counters"
        if problem is None and row["arrived_ns"] + tenant.spec.waited_ns > saved.now_ns:
            problem = "when it arrived"
        if problem is not None:
            misfit(f"request {tenant.spec.request_id!r}: {problem}")


def _check_prompt(spec: RequestSpec, prompt: Prompt, can: Capabilities) -> None:
    """The prompt is the one that the request is admitted with, at some window and with some cuts."""
    try:
        fresh = checked_prompt(spec, can)
    except AdmissionError as why:
        misfit(str(why))
    if (
        (prompt.tokens, prompt.blocks, prompt.windows) != (fresh.tokens, fresh.blocks, fresh.windows)
        or not whole(prompt.window, 0, max(0, len(prompt.windows) - 1))
        or not whole(prompt.anchor, -1, prompt.tokens)
        or not all(whole(extra, 1, prompt.tokens) for extra in prompt.extras)
    ):
        misfit(f"request {spec.request_id!r}: its prompt")


def _check_queue(saved: Saved, catalog: Catalog, arrays: dict[str, Array]) -> None:
    """The frames in flight, the last completed one, and what slots and ledgers know of them."""
    numbers = [frame.number for frame in saved.queue]
    if len(numbers) > FRAME_SLOTS or not all(whole(number, 0, layout.FRAMES - 1) for number in numbers):
        misfit("its frames")
    if not whole(saved.completed, -1, layout.FRAMES - 1) or len({saved.completed, *numbers}) != 1 + len(numbers):
        misfit("its frames")
    _check_fences(saved, arrays["frames"])
    tenants = {tenant.handle.slot: tenant for tenant in saved.tenants}
    in_flight = np.zeros(len(arrays["slots"]), np.int64)
    pending = np.zeros(len(arrays["slots"]), np.int64)
    for frame in saved.queue:
        problem = check_frame(frame, catalog, arrays, tenants, len(saved.queue))
        if problem is not None:
            misfit(f"frame {frame.fence}: {problem}")
        cohort = np.frombuffer(frame.plan.cohort, layout.LANE)
        in_flight[cohort["slot"]] += 1
        pending[cohort["slot"]] += cohort["ceiling"]
    if (in_flight != arrays["slots"]["in_flight"]).any() or (pending != arrays["slots"]["pending"]).any():
        misfit("what its slots have in flight")
    _check_served(saved, len(arrays["slots"]))
    _check_episode(saved)


def _check_fences(saved: Saved, frames: Array) -> None:
    """Fences rise from the last completed frame over those in flight to the last one given."""
    before = [int(frames["fence"][saved.completed])] if saved.completed >= 0 else []
    fences = [*before, *(frame.fence for frame in saved.queue)]
    if not all(whole(fence, 1, saved.last_fence) for fence in fences) or not _rises(fences):
        misfit("the fences of its frames")


def _rises(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(numbers))


def _check_served(saved: Saved, slots: int) -> None:
    """Whom the last completed frame served; nobody without one."""
    if not all(whole(slot, 0, slots - 1) and whole(of, 1, _MOST) for slot, of in saved.served.items()):
        misfit("whom its last completed frame served")
    if saved.served and saved.completed < 0:
        misfit("whom a frame served that is not there")


def _check_episode(saved: Saved) -> None:
    """A probe in flight, and nothing else, has its episode open."""
    probes = (Reason.TIMING_REFRESH, Reason.ACCEPTANCE_LEARNING)
    flying = [(frame.plan.reason, frame.fence) for frame in saved.queue if frame.plan.reason in probes]
    if flying != ([] if saved.ledgers.episode is None else [saved.ledgers.episode]):
        misfit("its open episode")
