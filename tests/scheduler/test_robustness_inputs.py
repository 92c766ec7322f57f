"""Whatever a host hands in before anything runs: requests, shapes, catalogs, settings, policy, time, resources."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler import Catalog, GraphKind, GraphShape, PolicyConfig, RequestScheduler, RequestSpec
from scheduler.errors import (
    ClockWentBack,
    InvalidCatalog,
    InvalidObservation,
    InvalidPolicy,
    InvalidRequest,
    InvalidShape,
)
from scheduler.plans import CostState
from scheduler.records import ImageSpan
from tests.scheduler.conftest import SHAPES, decode, prefill
from tests.scheduler.hostile import DEVICE, NARROW, NO_COUNTS, NO_NUMBERS, ROUND, decoding, refused

MOST = 2**31 - 1


def spec(**changes):
    return RequestSpec(
        **({"request_id": "x", "prompt_tokens": 10, "max_output_tokens": 1, "context_capacity": 99} | changes)
    )


@pytest.mark.parametrize("name", ["prompt_tokens", "max_output_tokens", "context_capacity", "cached_tokens"])
def test_every_count_of_a_request_is_a_whole_number_in_range(name):
    bad = [value for value in NO_COUNTS if not (name == "cached_tokens" and value is False)]
    for value in [*bad, MOST + 1]:
        with pytest.raises(InvalidRequest, match=name):
            spec(**{name: value})


@pytest.mark.parametrize("name", ["grammar", "host_stop", "host_fed", "scored", "restoring"])
def test_every_switch_of_a_request_is_true_or_false(name):
    """A number of 2 would be an index out of bounds to kernels; a text would fail only when its slot is taken."""
    for value in (0, 1, 2, "yes", "", None, math.nan, [], np.bool_(True)):
        with pytest.raises(InvalidRequest, match=f"{name} is .* True or False"):
            spec(**{name: value})


def test_ids_of_requests_are_text_that_a_checkpoint_can_hold():
    for value in (None, 5, b"x", [], ("x",), "\ud800"):
        with pytest.raises(InvalidRequest, match="request_id"):
            spec(request_id=value)
        if value is not None:
            with pytest.raises(InvalidRequest, match="continues"):
                spec(continues=value)


@pytest.mark.parametrize("value", [None, 5, "copy", ("dream",), (None,), ([],), {"copy"}])
def test_proposal_sources_are_a_tuple_of_known_names(value):
    with pytest.raises(InvalidRequest, match="proposal"):
        spec(proposal_sources=value)


@pytest.mark.parametrize(
    "value",
    [None, 5, "12", {5}, (0,), (11,), (-1,), (5, 5), (6, 5), (True,), (5.0,), (math.nan,), ("5",), (None,), (2**70,)],
)
def test_message_boundaries_are_whole_numbers_that_rise_within_the_prompt(value):
    with pytest.raises(InvalidRequest, match="message_boundaries"):
        spec(message_boundaries=value)
    spec(message_boundaries=(1, 10))


SPANS = [
    *((0, 0), (3, 2), (-1, 2), (9, 11), (0, 2**70), (0.0, 2), (0, 2.5), (False, 2), (0, True), (0, math.nan)),
    *((None, 2), ("0", "2")),
]


@pytest.mark.parametrize(
    "value", [None, 5, "ab", (5,), ((1,),), ((1, 2, 3),), ((0, 4), (3, 5)), *(((pair),) for pair in SPANS)]
)
def test_atomic_spans_are_disjoint_pairs_of_places(value):
    with pytest.raises(InvalidRequest, match="atomic_spans"):
        spec(atomic_spans=value)
    spec(atomic_spans=((0, 1), (1, 10)))


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, ((0, 2),), (None,), (ImageSpan(0, 4), ImageSpan(3, 5))),
        *((ImageSpan(first, end),) for first, end in SPANS),
        *((ImageSpan(0, 2, rows),) for rows in (*NO_COUNTS, 0, MOST + 1)),
    ],
)
def test_images_are_disjoint_places_that_fill_feature_rows(value):
    with pytest.raises(InvalidRequest, match="images"):
        spec(images=value)
    spec(images=(ImageSpan(0, 1), ImageSpan(1, 10, MOST)))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "decode"},
        {"kind": None},
        {"kind": []},
        {"allocation": "host"},
        {"allocation": None},
        {"speculation_enabled": 1},
        {"speculation_enabled": "yes"},
        *({name: value} for name in ("batch_capacity", "target_width") for value in (0, *NO_COUNTS)),
        *({name: value} for name in ("draft_depth", "prefill_capacity") for value in NO_NUMBERS),
        *({"target_rows": value} for value in (*NO_NUMBERS, -1, 2**70)),
    ],
)
def test_a_shape_of_wrong_types_is_refused(changes):
    with pytest.raises(InvalidShape):
        GraphShape(**({"kind": GraphKind.SPECULATIVE, "batch_capacity": 2} | changes))


@pytest.mark.parametrize("shapes", [[None], [decode(1), "prefill:C64"], [GraphKind.DECODE], [[decode(1)]]])
def test_a_catalog_holds_shapes_only(shapes):
    with pytest.raises(InvalidCatalog, match="no GraphShape"):
        Catalog(shapes)


@pytest.mark.parametrize("now_ns", NO_COUNTS)
def test_an_observation_at_no_time_leaves_the_estimate_alone(now_ns):
    catalog = Catalog([decode(1)])
    with pytest.raises(InvalidObservation, match="observed at"):
        catalog.observe(decode(1), 5, now_ns)
    assert catalog.estimate(decode(1), 0).state is CostState.UNKNOWN
    assert catalog.export() == [([], -1, -1)]
    assert int(catalog.graphs[0]["duration_ns"]) == 0


@pytest.mark.parametrize(
    ("setting", "bad"),
    [
        ("request_slots", (*NO_COUNTS, 0, 4097)),
        ("image_feature_rows", NO_COUNTS),
        ("completion_token_capacity", (*NO_COUNTS, 0)),
        ("checkpoint_extra_work_fraction", (math.nan, math.inf, -0.1, -1, "1", None, True, 10**400, [1])),
    ],
)
def test_settings_outside_their_range_are_refused(setting, bad):
    for value in bad:
        with pytest.raises(InvalidRequest, match=setting):
            RequestScheduler(Catalog(SHAPES), PolicyConfig(), **{setting: value})


@pytest.mark.parametrize("verification", [None, 5, True, b"adaptive", ["adaptive"], "fixed:-1", "fixed:٣", "fixed:4\n"])
def test_a_verification_that_is_no_known_text_is_refused(verification):
    with pytest.raises(InvalidCatalog, match="write adaptive"):
        RequestScheduler(Catalog(SHAPES), PolicyConfig(), verification=verification)


def test_what_is_no_catalog_or_no_policy_is_refused():
    for catalog in (None, SHAPES, "catalog", Catalog):
        with pytest.raises(InvalidCatalog, match="no Catalog"):
            RequestScheduler(catalog, PolicyConfig())
    for policy in (None, {}, "balanced", PolicyConfig):
        with pytest.raises(InvalidPolicy, match="must be a PolicyConfig"):
            RequestScheduler(Catalog(SHAPES), policy)


def test_a_load_that_is_refused_leaves_its_catalog_for_another():
    ragged = GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 6, speculation_enabled=True)
    for shapes, verification, says in (
        ((prefill(64), ragged), "adaptive", "needs an allocation"),
        ((prefill(64), NARROW, ROUND, DEVICE), "fixed:4", "device allocation"),
        ((prefill(64), decode(1)), "fixed:2", "none of the catalog's generation graphs"),
    ):
        catalog = Catalog(shapes, ttl_ns=77)
        with pytest.raises(InvalidCatalog, match=says):
            RequestScheduler(catalog, PolicyConfig(), verification=verification)
        assert catalog.ttl_ns == 77
        assert catalog.graphs["usable"].tolist() == [1] * len(shapes)


def test_a_policy_that_is_none_changes_nothing():
    h = decoding()
    for policy in (None, {}, "balanced", PolicyConfig, PolicyConfig().as_dict()):
        refused(h.scheduler, InvalidPolicy, h.scheduler.configure_policy, policy)
    assert h.step() is not None


def test_a_clock_that_goes_back_or_tells_no_time_changes_nothing():
    h = decoding()
    s = h.scheduler
    for now_ns in (h.now_ns - 1, 0, -1, -(2**62) + 1):
        refused(s, ClockWentBack, s.advance_to, now_ns)
    for now_ns in (*NO_NUMBERS, True, np.int64(2**60), 2**62, 2**63, -(2**63), 10**400):
        refused(s, InvalidObservation, s.advance_to, now_ns, says="whole ns")
    s.advance_to(h.now_ns)
    assert s.now_ns == h.now_ns, "the same time again is no step back"


def test_the_last_moments_that_the_clock_can_tell_are_planned_in():
    h = decoding()
    h.now_ns = 2**62 - 1 - 10 * duration_of_all(h)
    h.scheduler.advance_to(h.now_ns)
    for _ in range(5):
        plan = h.step()
        assert math.isfinite(plan.score)
        assert all(0.0 <= lane.age_ms < math.inf for lane in plan.lanes)
    h.scheduler.advance_to(2**62 - 1)
    assert h.scheduler.plan() is not None


def duration_of_all(h):
    return sum(h.durations(shape) for shape in h.scheduler.catalog.shapes)


def test_resources_that_cannot_be_change_nothing():
    h = decoding()
    s = h.scheduler
    s.set_resources(100, 2)
    for bad in (value for value in (*NO_COUNTS, 2**40) if value is not False):
        refused(s, InvalidObservation, s.set_resources, bad, 0, says="free_pages")
        refused(s, InvalidObservation, s.set_resources, 5, bad, says="free_snapshot_rows")
        refused(s, InvalidObservation, s.set_resources, 5, 0, bad, says="page_tokens")
    refused(s, InvalidObservation, s.set_resources, 5, 0, 0, says="page_tokens")
    s.set_resources(2**40 - 1, 2**40 - 1, 2**40 - 1)
    assert h.step() is not None


@pytest.mark.parametrize("value", [None, "a", {}, ("a", 64, 1, 99), RequestSpec])
def test_what_is_no_request_is_not_admitted(value):
    h = decoding()
    refused(h.scheduler, InvalidRequest, h.scheduler.admit, value, says="no RequestSpec")
