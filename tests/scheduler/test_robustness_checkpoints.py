"""Checkpoints that are cut off, damaged, of another version or catalog, or written by another program."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from scheduler import Catalog, PolicyConfig, RequestScheduler, RequestSpec, layout
from scheduler.errors import InvalidCatalog, InvalidCheckpoint
from tests.scheduler.conftest import decode, prefill
from tests.scheduler.hostile import DEVICE, GOOD, NARROW, STATE, answers, commit, decoding

SHAPES = (prefill(64), decode(2))
HEADER = len(b"helios-scheduler") + 4


@pytest.fixture(scope="module")
def saved():
    """A checkpoint with two frames in flight and one completed."""
    h = decoding(slots=3)
    commit(h)
    commit(h)
    return h.scheduler.checkpoint()


def sealed(contents):
    """Bytes of the contents with the checksum that belongs to them."""
    payload = msgspec.msgpack.encode(contents)
    return b"helios-scheduler" + zlib.crc32(payload).to_bytes(4, "big") + payload


def opened(data):
    return msgspec.msgpack.decode(data[HEADER:])


def refused(data, says=None, catalog=None):
    """restore() refuses the bytes, with words, and learns nothing of them."""
    catalog = Catalog(SHAPES) if catalog is None else catalog
    with pytest.raises(InvalidCheckpoint, match=says) as caught:
        RequestScheduler.restore(data, catalog)
    assert str(caught.value).strip()
    assert catalog.export() == [([], -1, -1)] * len(catalog.shapes)


def test_every_shorter_and_every_longer_text_is_refused(saved):
    for length in (*range(60), *range(60, len(saved), 97), len(saved) - 1):
        refused(saved[:length])
    for more in (b"\0", saved, b"helios-scheduler"):
        refused(saved + more)
        refused(more + saved)


def test_a_changed_bit_anywhere_is_noticed(saved):
    for position in (*range(60), *range(60, len(saved), 131)):
        refused(saved[:position] + bytes([saved[position] ^ 1 << position % 8]) + saved[position + 1 :])


@pytest.mark.parametrize("data", [None, 5, "helios-scheduler", b"", bytearray(40), memoryview(b"x" * 40), [b"x"]])
def test_what_is_no_bytes_is_no_checkpoint(data):
    refused(data)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"\x80", b"\xc0", b"\xd9\x02\xff\xfe", b"\x91" * 5000])
def test_a_checksum_over_nonsense_does_not_help_it(payload):
    refused(b"helios-scheduler" + zlib.crc32(payload).to_bytes(4, "big") + payload, "cannot be read")


@pytest.mark.parametrize("changes", [{"version": 3}, {"version": 0}, {"layout": "0123456789abcdef"}])
def test_another_version_is_named_even_when_its_contents_are_unknown(saved, changes):
    contents = opened(saved) | changes
    refused(sealed(contents), "this program reads version 2")
    refused(sealed({name: contents[name] for name in ("version", "layout")} | {"new": [1]}), "reads version 2")


def test_another_catalog_is_refused(saved):
    for shapes in (SHAPES[::-1], SHAPES[:1], (*SHAPES, decode(1)), (prefill(128), decode(2)), (prefill(64), NARROW)):
        refused(saved, "another catalog", Catalog(shapes))
    for catalog in (None, SHAPES, "catalog"):
        with pytest.raises(InvalidCatalog, match="no Catalog"):
            RequestScheduler.restore(saved, catalog)


def test_every_part_must_be_there(saved):
    contents = opened(saved)
    for name in contents:
        refused(sealed({key: value for key, value in contents.items() if key != name}))
        for value in (None, "x", [[]], -1.5):
            if contents[name] != value:
                refused(sealed(contents | {name: value}))


def test_arrays_of_other_names_or_sizes_are_refused(saved):
    contents = opened(saved)
    arrays = contents["arrays"]
    for name, held in arrays.items():
        for other in (b"", held[:-1], held[:-8], held + b"\0" * 8):
            refused(sealed(contents | {"arrays": arrays | {name: other}}), "do not fit")
        refused(
            sealed(contents | {"arrays": {key: value for key, value in arrays.items() if key != name}}), "do not fit"
        )
    refused(sealed(contents | {"arrays": arrays | {"more": b""}}), "do not fit")


def test_fewer_slots_than_the_arrays_have_are_refused(saved):
    contents = opened(saved)
    for slots in (1, 2, 4, 4096):
        refused(sealed(contents | {"settings": contents["settings"] | {"request_slots": slots}}), "do not fit")
    for slots in (0, 4097, 2.5, True):
        refused(sealed(contents | {"settings": contents["settings"] | {"request_slots": slots}}), "cannot be read")


@pytest.mark.parametrize("slot", [-1, 3, 2**40])
def test_a_request_at_a_slot_that_is_not_there_is_refused(saved, slot):
    contents = opened(saved)
    tenant = contents["tenants"][0]
    moved = tenant | {"handle": tenant["handle"] | {"slot": slot}}
    refused(sealed(contents | {"tenants": [moved, *contents["tenants"][1:]]}), "do not fit")


def test_two_requests_in_one_slot_or_of_one_name_are_refused(saved):
    contents = opened(saved)
    first, second = contents["tenants"]
    refused(sealed(contents | {"tenants": [first, first]}), "do not fit")
    refused(sealed(contents | {"tenants": [first, second | {"spec": first["spec"]}]}), "do not fit")
    refused(sealed(contents | {"tenants": [first]}), "do not fit")


def test_frames_that_cannot_be_are_refused(saved):
    contents = opened(saved)
    first, second = contents["queue"]
    lane = first["plan"]["cohort"][: layout.LANE.itemsize]
    plans = [{"graph": -1}, {"graph": 2}, {"cohort": lane[:-1]}, {"cohort": b"\xff" * len(lane)}]
    for queue in (
        [first, first],
        [first, second, second | {"number": contents["completed"]}],
        [first | {"number": -1}, second],
        [first | {"number": 3}, second],
        [first | {"number": contents["completed"]}, second],
        *([first | {"plan": first["plan"] | changes}, second] for changes in plans),
    ):
        refused(sealed(contents | {"queue": queue}), "do not fit")
    for completed in (-2, 3):
        refused(sealed(contents | {"completed": completed}), "do not fit")


@pytest.mark.parametrize("value", [-2, 2**62, 2**63])
def test_estimates_out_of_range_are_refused(saved, value):
    contents = opened(saved)
    good = contents["estimates"]
    for bad in ([[value], 0, -1], [[5], value, -1], [[5], 0, value]):
        refused(sealed(contents | {"estimates": [bad, *good[1:]]}), "do not fit")
    refused(sealed(contents | {"estimates": good[:1]}), "do not fit")


@pytest.mark.parametrize("changes", [{"greed": 1.0}, {"decode_age_price": -1.0}, {"prefill_chunking": "wild"}])
def test_a_policy_that_cannot_be_is_refused(saved, changes):
    contents = opened(saved)
    refused(sealed(contents | {"coefficients": contents["coefficients"] | changes}), "policy cannot be used")


def test_a_request_that_contradicts_itself_is_refused(saved):
    contents = opened(saved)
    tenant = contents["tenants"][0]
    for changes in ({"prompt_tokens": 0}, {"cached_tokens": 64}, {"scored": 2}, {"images": [[0, 2, 0]]}):
        bad = tenant | {"spec": tenant["spec"] | changes}
        refused(sealed(contents | {"tenants": [bad, *contents["tenants"][1:]]}), "cannot be read")


@pytest.mark.parametrize("shapes", [(prefill(64), decode(2), *STATE), (prefill(64), DEVICE, NARROW)])
def test_an_empty_scheduler_and_an_absurd_policy_survive_the_bytes(shapes):
    policy = PolicyConfig(*[1e300] * 6, 5e-324, 2**63 - 1, 5e-324)
    scheduler = RequestScheduler(Catalog(shapes), policy, 4096, 1e300, image_feature_rows=2**31 - 1)
    again = RequestScheduler.restore(scheduler.checkpoint(), Catalog(shapes))
    assert again.checkpoint() == scheduler.checkpoint()
    assert again.policy == policy
    assert again.plan() is None


def test_what_was_saved_in_the_middle_goes_on(saved):
    twin = RequestScheduler.restore(saved, Catalog(SHAPES))
    fence = twin._state.queue[0].fence
    assert len(twin.complete(fence, answers(twin.in_flight), GOOD)) == 2
    twin.admit(RequestSpec("c", 64, 8, 99))
    assert twin.in_flight_frames == 1
