"""State programs clear, save and restore exactly what they name; a restored request goes on as if it had never left."""

import pytest
import torch
from program_host import ProgramHost, decode_shape, prompt_of, round_shape, tensors_of
from tiny_draft_head import write_tiny_draft_head

from gpu.device import InvalidFrame
from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.pages import PAGE_TOKENS, pages_for
from gpu.programs.create import create_copy_program, create_init_program
from gpu.programs.interface import LaneInput, StateCopy
from scheduler.shapes import GraphKind, GraphShape


@pytest.fixture(scope="module")
def loaded(tiny_checkpoint, tmp_path_factory):
    model = load_model(open_source(tiny_checkpoint), torch.float32, 512)
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    write_tiny_draft_head(path, model.config)
    return model, load_draft_head(path, model)


@pytest.fixture
def host(loaded) -> ProgramHost:
    host = ProgramHost(*loaded, slots=6)
    for slot, length in ((0, 35), (1, 16)):
        host.open(slot, prompt_of(length, seed=slot))
        host.prefill(slot)
    return host


def state_program(create, host, kind, batch=2):
    return create(GraphShape(kind, batch), host.context)


def save(host, slot, page, row, **changes) -> StateCopy:
    """A snapshot of a slot's last page and hidden state."""
    cursor = int(host.state.cursor[slot])
    last = pages_for(cursor) - 1
    copy = {"source_page": host.pages_of(slot)[last], "target_page": page, "rows": cursor - last * PAGE_TOKENS}
    return StateCopy(**copy, source_slot=slot, target_row=row, **changes)


@pytest.mark.parametrize("consumed", [16, 17, 31, 32, 35])
def test_a_restored_request_goes_on_as_if_it_had_never_left(consumed, loaded):
    """The full pages are shared by reference, the last one is copied to the cache and from there to the new slot."""
    host = ProgramHost(*loaded, slots=6)
    prompt = prompt_of(50)
    for slot in (0, 4):
        host.open(slot, prompt)
    host.prefill(4)
    host.prefill(0, count=consumed)
    page, last = host.pages_of(5)[0], pages_for(consumed) - 1
    copy = state_program(create_copy_program, host, GraphKind.SNAPSHOT)
    copy.run([save(host, 0, page, row=2)])
    host.prefill(0)
    for _ in range(3):
        host.run(round_shape(2, 3), LaneInput(0, rows=4))

    host.open(1, prompt)
    host.state.set_pages(1, 0, host.pages_of(0)[:last])
    target = host.pages_of(1)[last]
    for memory in (*host.cache.keys, *host.cache.values):
        memory[host.kv_rows(1, 64)] = torch.nan
    rows = consumed - last * PAGE_TOKENS
    restore = state_program(create_copy_program, host, GraphKind.RESTORE)
    restore.run([StateCopy(page, target, rows, source_row=2, target_slot=1, cursor=consumed)])
    host.prefill(1)
    for _ in range(3):
        output, _ = host.run(round_shape(2, 3), LaneInput(1, rows=4), LaneInput(4, rows=4))
        assert output.lanes[0] == output.lanes[1]
        torch.testing.assert_close(output.confidence[0], output.confidence[1], rtol=1e-4, atol=1e-6)
    assert host.outputs[1] == host.outputs[4] == host.outputs[0]


def test_copies_change_only_what_they_name(host):
    copy = state_program(create_copy_program, host, GraphKind.SNAPSHOT, batch=4)
    page = host.pages_of(5)[3]
    before = tensors_of(host)
    copy.run([save(host, 0, page, row=1)])
    kv_count, hidden = 2 * len(host.cache.keys), host.state.last_hidden[0]
    for number, (old, new) in enumerate(zip(before, tensors_of(host), strict=True)):
        kept = torch.ones(len(old), dtype=torch.bool)
        if number < kv_count:
            kept[[0, *range(page * PAGE_TOKENS, page * PAGE_TOKENS + 3)]] = False
            assert torch.equal(new[page * PAGE_TOKENS : page * PAGE_TOKENS + 3], old[host.kv_rows(0, 35)[32:]])
        elif len(old) == host.state.slots + 1:
            kept[-1] = False
        else:
            kept[[1, -1]] = False
        assert torch.equal(old[kept], new[kept])
    assert torch.equal(host.state.snapshot_hidden[1], hidden)


def test_a_restore_sets_the_cursor_of_its_slot_alone(host):
    restore = state_program(create_copy_program, host, GraphKind.RESTORE, batch=4)
    host.open(2, prompt_of(20))
    restore.run([StateCopy(host.pages_of(0)[0], host.pages_of(2)[0], 9, source_row=0, target_slot=2, cursor=9)])
    assert host.state.cursor.tolist() == [35, 16, 9, 0, 0, 0, 0]
    assert host.state.pending.tolist()[2:] == [-1] * 5


def test_init_clears_progress_and_hidden_state_and_keeps_the_count_of_earlier_lives(host):
    host.run(decode_shape(2), LaneInput(0), LaneInput(1))
    before = tensors_of(host)
    state_program(create_init_program, host, GraphKind.INIT).run([1])
    state = host.state
    assert (int(state.cursor[1]), int(state.pending[1]), int(state.emitted[1])) == (0, -1, 2)
    assert not bool(state.last_hidden[1].any())
    for old, new in zip(before, tensors_of(host), strict=True):
        kept = torch.ones(len(old), dtype=torch.bool)
        if len(old) == state.slots + 1:
            kept[[1, -1]] = False
        assert torch.equal(old[kept], new[kept])


def test_warm_ups_touch_padding_only(host):
    before = tensors_of(host)
    state_program(create_init_program, host, GraphKind.INIT).run([])
    state_program(create_copy_program, host, GraphKind.RESTORE).run([])
    for number, (old, new) in enumerate(zip(before, tensors_of(host), strict=True)):
        kept = slice(1, None) if number < 2 * len(host.cache.keys) else slice(0, -1)
        assert torch.equal(old[kept], new[kept])


def test_more_lanes_than_prepared_are_refused(host):
    with pytest.raises(InvalidFrame):
        state_program(create_init_program, host, GraphKind.INIT).run([0, 1, 2])
    with pytest.raises(InvalidFrame):
        state_program(create_copy_program, host, GraphKind.SNAPSHOT).run([save(host, 0, 9, row=0)] * 3)
