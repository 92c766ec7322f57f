"""Checkpoints that somebody forged, with a checksum that is right: refused with a typed error, or harmless.

A number out of place would have a compiled kernel read or write behind its arrays. So numbers are changed at every kind
of place; what is still restored then plans, commits and completes.
"""

from __future__ import annotations

import functools
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Catalog, CompletionRecord, RequestScheduler, layout
from scheduler.errors import InvalidCheckpoint, SchedulerError
from scheduler.replay import shapes_in
from scheduler.saved import array_forms
from service.why.reference_state import reference_from
from tests.scheduler.hostile import DEVICE, GOOD, NARROW, ROUND, commit, decoding
from tests.scheduler.test_replay import Run

HEADER = len(b"helios-scheduler") + 4
INTEGERS = (-(2**63), -(2**40), -2, -1, 0, 1, 2, 3, 7, 63, 64, 65, 4096, 2**31, 2**40, 2**62, 2**63 - 1)
FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 1e-320, 0.5, 1.5, 1e13, 1.7e308)


def opened(data):
    return msgspec.msgpack.decode(data[HEADER:])


def sealed(contents):
    """Bytes of the contents with the checksum that belongs to them."""
    payload = contents if isinstance(contents, bytes) else msgspec.msgpack.encode(contents)
    return b"helios-scheduler" + zlib.crc32(payload).to_bytes(4, "big") + payload


@functools.cache
def runs():
    """Checkpoints of every kind of work: images in windows, snapshots, rounds by device, offers, probes, two frames."""
    kept = []
    for seed in range(3):
        run = Run(seed)
        for number in range(80):
            run.step()
            if number % 9 == 0:
                kept.append(run.scheduler.checkpoint())
    for shapes in ((ROUND,), (DEVICE, NARROW), ()):
        two = decoding(*shapes, slots=4)
        commit(two)
        commit(two)
        kept.append(two.scheduler.checkpoint())
    return kept


def drawn(data, choices):
    """One of many bytes, drawn by its number, which is all that a report needs."""
    return choices[data.draw(st.integers(0, len(choices) - 1))]


def drive(data):
    """Restore and go on for some frames with whatever is there; what the scheduler refuses is a typed error."""
    catalog = Catalog(shapes_in(data))
    scheduler = RequestScheduler.restore(data, catalog)
    scheduler.checkpoint()
    for _ in range(4):
        plan = scheduler.plan()
        scheduler.all_candidates()
        try:
            if plan is not None:
                repr(plan)
                scheduler.commit(plan, scheduler._state.last_fence + 1)
            if scheduler.in_flight is not None:
                complete(scheduler)
        except SchedulerError:
            return
    scheduler.checkpoint()


def complete(scheduler):
    """The oldest frame with all that its lanes may do."""
    frame = scheduler._state.queue[0]
    device = frame.device_allocated
    records = [
        CompletionRecord(lane.handle, lane.prompt_tokens, (1,) * lane.ceiling, max(0, lane.ceiling - 1) * device)
        for lane in frame.plan.lanes
    ]
    confidence = np.full((2, scheduler.request_slots, scheduler.draft_capacity), 0.5, np.float32)
    tokens = scheduler.complete_packed_round(frame.fence, records, GOOD, confidence)
    for token in tokens:
        scheduler.published_output(token.handle, frame.fence)


def refused_or_harmless(data):
    """Whether it was refused; any other error than the typed one fails."""
    try:
        drive(data)
    except InvalidCheckpoint:
        return True
    reference_from(data).plan()
    return False


def places(value, path=()):
    """Paths of all numbers, switches and texts in decoded contents; arrays of records are left to forged_record."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield from places(held, (*path, name))
    elif isinstance(value, list):
        for number, held in enumerate(value):
            yield from places(held, (*path, number))
    elif not isinstance(value, bytes):
        yield path


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def forms_of(contents):
    depth = max(1, *(shape["draft_depth"] for shape in contents["shapes"]))
    capacities = {shape["prefill_capacity"] for shape in contents["shapes"]} - {0}
    return array_forms(contents["settings"]["request_slots"], depth, len(capacities))


def forged_record(contents, name, field, index, new):
    """The contents with one field of one record of an array (or of a frame's own lanes) set to another number."""
    dtype = forms_of(contents)[name].dtype
    array = np.frombuffer(contents["arrays"][name], dtype).copy()
    target = array if not dtype.names else array[dtype.names[field % len(dtype.names)]]
    target[index % len(target)] = new[0] if target.dtype.kind == "i" else new[1]
    return contents | {"arrays": contents["arrays"] | {name: array.tobytes()}}


def test_what_nobody_forged_goes_on():
    assert not any(refused_or_harmless(data) for data in runs())


NAMES = tuple(array_forms(1, 1, 1))


@settings(max_examples=400)
@given(st.data())
def test_a_number_of_an_array_that_is_changed_is_refused_or_harmless(data):
    contents = opened(drawn(data, runs()))
    for _ in range(data.draw(st.integers(1, 2))):
        new = data.draw(st.sampled_from(INTEGERS)), data.draw(st.sampled_from(FLOATS))
        name, field = data.draw(st.sampled_from(NAMES)), data.draw(st.integers(0, 31))
        contents = forged_record(contents, name, field, data.draw(st.integers(0, 200)), new)
    refused_or_harmless(sealed(contents))


def paths_by_kind(contents):
    """Every place by what it is called: places of one kind are as good as each other."""
    found = {}
    for path in places(contents):
        found.setdefault(tuple(part for part in path if isinstance(part, str)), []).append(path)
    return found


@settings(max_examples=400)
@given(st.data())
def test_a_value_beside_the_arrays_that_is_changed_is_refused_or_harmless(data):
    contents = opened(drawn(data, runs()))
    by_kind = paths_by_kind({name: held for name, held in contents.items() if name not in ("version", "layout")})
    path = data.draw(st.sampled_from(by_kind[data.draw(st.sampled_from(sorted(by_kind)))]))
    new = data.draw(st.sampled_from((*INTEGERS, *FLOATS, 2**64 - 1, None, True, "", "learned", [])))
    refused_or_harmless(sealed(replaced(contents, path, new)))


@settings(max_examples=200)
@given(st.data())
def test_bytes_that_are_changed_under_a_new_checksum_are_refused_or_harmless(data):
    payload = bytearray(drawn(data, runs())[HEADER:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    refused_or_harmless(sealed(bytes(payload)))


@settings(max_examples=100)
@given(st.data())
def test_lanes_in_flight_that_are_changed_in_all_their_copies_are_refused_or_harmless(data):
    flying = [held for held in runs() if opened(held)["queue"]]
    contents = opened(drawn(data, flying))
    frame = contents["queue"][0]
    cohort = np.frombuffer(frame["plan"]["cohort"], layout.LANE).copy()
    field = data.draw(st.sampled_from(layout.LANE.names))
    place = data.draw(st.integers(0, len(cohort) - 1))
    cohort[field][place] = data.draw(st.sampled_from(INTEGERS if field != "expected_tokens" else FLOATS))
    lanes = np.frombuffer(contents["arrays"]["lanes"], layout.LANE).copy().reshape(layout.FRAMES, -1)
    lanes[frame["number"], : len(cohort)] = cohort
    plan = frame["plan"] | {"cohort": cohort.tobytes()}
    queue = [frame | {"plan": plan}, *contents["queue"][1:]]
    arrays = contents["arrays"] | {"lanes": lanes.tobytes()}
    refused_or_harmless(sealed(contents | {"queue": queue, "arrays": arrays}))


def slot_field(name):
    return layout.SLOT.names.index(name)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("slots", slot_field("source"), 2),
        ("slots", slot_field("scored"), 2),
        ("slots", slot_field("output_limit"), 2**31 - 1),
        ("slots", slot_field("in_flight"), 1),
        ("slots", slot_field("stage"), layout.SNAPSHOT),
        ("slots", slot_field("consumed"), 2**31 - 1),
        ("frames", layout.FRAME.names.index("graph"), 2**40),
        ("frames", layout.FRAME.names.index("lanes"), 4096),
        ("lanes", layout.LANE.names.index("slot"), 2**40),
        ("works", 0, 2**31),
    ],
)
def test_what_kernels_index_with_is_refused(name, field, value):
    contents = opened(runs()[-1])
    number = contents["queue"][0]["number"] * contents["settings"]["request_slots"] if name == "lanes" else 0
    number = contents["queue"][0]["number"] if name == "frames" else number
    with pytest.raises(InvalidCheckpoint, match="do not fit"):
        drive(sealed(forged_record(contents, name, field, number, (value, 0.0))))


@pytest.mark.parametrize(("place", "value"), [(0, 1.5), (2, float("nan")), (1, 0.0), (3, 257.0)])
def test_a_pool_that_is_no_chance_of_some_weight_is_refused(place, value):
    contents = opened(runs()[0])
    pool = np.frombuffer(contents["arrays"]["pool"]).copy()
    pool[place] = value
    arrays = contents["arrays"] | {"pool": pool.tobytes()}
    with pytest.raises(InvalidCheckpoint, match=r"pool (means|weights) out of its range"):
        drive(sealed(contents | {"arrays": arrays}))


@pytest.mark.parametrize("values", [(0.2, 0.9), (float("nan"), 0.1), (2.0, 0.1), (-0.5, -0.6)])
def test_survival_that_kernels_cannot_rank_is_refused(values):
    data = Run(1).scheduler.checkpoint()
    contents = opened(data)
    survival = np.frombuffer(contents["arrays"]["survival"]).copy()
    survival[:2] = values
    arrays = contents["arrays"] | {"survival": survival.tobytes()}
    with pytest.raises(InvalidCheckpoint, match="survival"):
        drive(sealed(contents | {"arrays": arrays}))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x81\xa1x" + b"\x91" * 100_000,  # a field that nobody knows, nested without end
        b"\x81\xa6shapes\xdd\xff\xff\xff\xff",  # a list that says it has four thousand million entries
    ],
)
def test_nesting_and_lengths_without_end_are_refused(payload):
    with pytest.raises(InvalidCheckpoint):
        shapes_in(sealed(payload))


@pytest.mark.parametrize("shapes", [[], "twice"])
def test_a_catalog_that_is_none_is_refused(shapes):
    contents = opened(runs()[0])
    bad = contents["shapes"] + contents["shapes"][:1] if shapes == "twice" else shapes
    with pytest.raises(InvalidCheckpoint, match="catalog is none"):
        drive(sealed(contents | {"shapes": bad}))


def test_settings_that_leave_no_graph_are_refused():
    contents = opened(runs()[-1])
    for verification in ("fixed:7", "sometimes"):
        bad = contents | {"settings": contents["settings"] | {"verification": verification}}
        with pytest.raises(InvalidCheckpoint, match="its settings"):
            drive(sealed(bad))
