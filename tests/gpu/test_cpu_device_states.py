"""Cached states, preemption and growing pages: what a request says does not depend on where it started from."""

import pytest
from device_driver import GREEDY, decode, prefill, state_graph

from gpu.device import InvalidFrame, InvalidRequest, PagesExhausted, RequestExceedsPool, SamplingParameters
from gpu.draft_heads import SHIPPED
from gpu.memory import RequestPages
from gpu.prefix_cache import Role
from gpu.requests import OpenRequest
from scheduler.shapes import GraphKind

PROMPT = [(37 * at + 11) % 251 for at in range(40)]
OTHER = [(91 * at + 5) % 247 for at in range(30)]
DICE = SamplingParameters(temperature=1.0, seed=77, frequency_penalty=0.5, repetition_penalty=1.1)


def pages(driver):
    return driver.device.used_pages(), driver.device.free_pages()


@pytest.mark.parametrize("endpoint", [1, 7, 15, 16, 17, 31, 32, 39])
def test_a_prompt_that_starts_from_a_cached_state_gets_the_tokens_it_gets_without(endpoint, driver):
    prompt = PROMPT[:endpoint] + OTHER
    expected = driver.generate(0, prompt, 8)
    driver.open(1, PROMPT, boundaries=(endpoint,))
    driver.read(1, endpoint)
    driver.capture(1)
    assert driver.device.match_prefix(prompt) == endpoint
    beside = driver.read(1, len(PROMPT) - endpoint)  # goes on in pages that the state shares
    assert driver.generate(2, prompt, 8, reuse=True) == expected
    assert driver.generate(3, prompt, 8, reuse=True) == expected
    driver.device.close_request(1)
    assert driver.generate(0, PROMPT, 1, reuse=True) == list(beside)
    assert pages(driver) == (0, driver.device.limits.kv_pages)


def test_a_cached_state_is_held_until_its_copy_has_been_made(driver):
    driver.start(0, PROMPT)
    driver.retire(0)
    driver.device.open_request(1, PROMPT + OTHER, 8, GREEDY, cached_tokens=40)
    assert pages(driver)[0] == 3 + 1  # two shared pages, the request's own last one and the state's
    driver.run(state_graph(GraphKind.RESTORE), (1, 1))
    assert pages(driver)[0] == 3
    driver.device.open_request(2, PROMPT + OTHER, 8, GREEDY, cached_tokens=40)
    driver.device.close_request(2)  # given up before it was restored
    assert pages(driver)[0] == 3


def test_the_longest_cached_state_is_matched_and_one_token_is_left_to_compute(driver):
    driver.open(0, PROMPT, boundaries=(10, 20))
    for chunk in (10, 10, 20):
        driver.read(0, chunk)
        driver.capture(0)
    matched = [driver.device.match_prefix(PROMPT[:length]) for length in (10, 11, 20, 21, 40)]
    assert matched == [9, 10, 19, 20, 39]  # a prompt that is a state's starts from it, a token short
    assert driver.device.match_prefix([*PROMPT, 1]) == 40
    assert driver.device.match_prefix([1, *PROMPT]) == 0


def test_an_answer_that_ended_is_found_by_the_next_turn(driver):
    answer = [driver.start(0, PROMPT), *(driver.step(1, 0)[0] for _ in range(6))]
    driver.retire(0)
    turn = PROMPT + answer + OTHER
    assert driver.device.match_prefix(turn) == len(PROMPT) + len(answer) - 1  # the last token is not in its pages
    assert driver.generate(1, turn, 6, reuse=True) == driver.generate(2, turn, 6)


@pytest.mark.parametrize("sampling", [GREEDY, DICE])
@pytest.mark.parametrize("length", [2, 16, 17, 18, 32, 33, 40])
def test_the_same_prompt_again_computes_its_last_token_alone(length, sampling, make_driver):
    model, head = SHIPPED.parent / "byte-model", SHIPPED / "byte-model.safetensors"
    driver = make_driver(model, draft_tokens=2, draft_head=head)
    prompt = PROMPT[:length]
    expected = driver.generate(0, prompt, 8, sampling=sampling)
    driver.start(0, prompt, boundaries=(length,))
    driver.capture(0)
    (state,) = driver.device._memory.cache
    assert (state.endpoint, state.role) == (length, Role.ANCHOR)
    for slot in (1, 2):
        assert driver.open(slot, prompt, sampling=sampling, reuse=True) == length - 1
        assert driver.read(slot, 1)[0] == expected[0]
    driver.retire(1)  # and what it gives away takes nothing from the others
    driver.device.close_request(2)
    assert driver.generate(3, prompt, 8, sampling=sampling, reuse=True) == expected
    driver.device.close_request(0)
    assert pages(driver) == (0, driver.device.limits.kv_pages)


@pytest.mark.parametrize("kind", [GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT])
@pytest.mark.parametrize("keeps", [40, 47, 48, 49, 59, 64])
def test_a_state_ends_where_the_answer_does_rather_than_at_what_was_computed(kind, keeps, driver):
    answer = [driver.start(0, PROMPT), *(driver.step(1, 0)[0] for _ in range(19))]
    driver.run(state_graph(kind), (0, 1, False, True, keeps))
    driver.device.close_request(0)
    end = min(keeps, 59)
    turn = PROMPT + answer[: end - 40] + OTHER
    assert driver.device.match_prefix(turn) == end
    assert driver.generate(1, turn, 6, reuse=True) == driver.generate(2, turn, 6)
    assert pages(driver) == (0, driver.device.limits.kv_pages)


def test_only_the_answers_end_can_be_kept_and_only_of_a_request_that_retires(driver):
    driver.start(0, PROMPT)
    driver.step(1, 0)
    for kind, retires, keeps in ((GraphKind.SNAPSHOT, False, 40), (GraphKind.TERMINAL_SNAPSHOT, True, 39)):
        with pytest.raises(InvalidFrame, match=f"cannot keep {keeps} tokens"):
            driver.submit(state_graph(kind), (0, 1, False, retires, keeps))
    driver.open(1, PROMPT)
    driver.read(1, 9)
    driver.run(state_graph(GraphKind.TERMINAL_SNAPSHOT), (1, 1, False, True, 39))
    assert driver.device.match_prefix(PROMPT) == 9


@pytest.mark.parametrize(("keeps", "known"), [(None, True), (44, True), (43, False)])
def test_a_hidden_state_is_that_of_the_states_last_token_or_none(keeps, known, make_driver):
    model, head = SHIPPED.parent / "byte-model", SHIPPED / "byte-model.safetensors"
    driver = make_driver(model, draft_tokens=2, draft_head=head)
    driver.start(0, PROMPT)
    for _ in range(4):
        driver.step(1, 0)
    driver.run(state_graph(GraphKind.TERMINAL_SNAPSHOT), (0, 1, False, True, keeps))
    (state,) = driver.device._memory.cache
    assert state.endpoint == (44 if keeps is None else keeps)
    assert bool(driver.device._state.snapshot_hidden[state.row].any()) is known


@pytest.mark.parametrize("sampling", [GREEDY, DICE])
@pytest.mark.parametrize("read", [0, 9, 16, 40])
def test_a_preempted_request_goes_on_as_if_nothing_had_been(sampling, read, driver):
    expected = driver.generate(0, PROMPT, 20, sampling=sampling)
    driver.open(1, PROMPT, 20, sampling)
    said = list(driver.read(1, read)) if read else []
    for _ in range(7 if read == len(PROMPT) else 0):
        said += driver.step(1, 1)
    driver.retire(1)
    driver.generate(3, OTHER, 5)
    prompt = PROMPT + said
    left = 20 - len(said)
    cached = driver.open(2, prompt, left, sampling, reuse=True, emitted_before=len(said))
    assert cached == (len(prompt) - 1 if said else read)
    said += driver.read(2, len(prompt) - cached)
    driver.retire(2)  # and once more
    prompt = PROMPT + said
    said.append(driver.start(0, prompt, 20, sampling, reuse=True, emitted_before=len(said)))
    while len(said) < 20:
        said += driver.step(2, 0)
    assert said == expected


def test_pages_grow_with_frames_and_never_behind_what_the_scheduler_counts(make_driver):
    driver = make_driver(kv_pages=6)
    driver.open(0, PROMPT, outputs=30)
    assert pages(driver) == (0, 6)
    driver.read(0, 15)
    assert pages(driver) == (1, 5)
    driver.read(0, 16)  # 31 tokens, and room for one that is drawn
    assert pages(driver) == (2, 4)
    driver.read(0, 9)
    assert pages(driver) == (3, 3)
    for emitted in range(1, 9):
        driver.step(1, 0)
        assert pages(driver)[0] == (3 if 40 + emitted + 1 <= 48 else 4)
    driver.device.close_request(0)
    assert pages(driver) == (0, 6)


def test_a_frame_whose_pages_cannot_be_had_changes_nothing(make_driver):
    driver = make_driver(kv_pages=6)
    for slot in (0, 1):
        driver.open(slot, PROMPT, outputs=20)
        driver.read(slot, 40)
        for _ in range(7):
            driver.step(1, slot)
    assert pages(driver) == (6, 0)
    with pytest.raises(PagesExhausted, match="2 KV pages and 0 are free"):
        driver.submit(decode(2), (0, 1), (1, 1))
    assert driver.device.collect() is None
    assert pages(driver) == (6, 0)
    driver.retire(0)  # needs no page: it gives its last one away
    assert pages(driver) == (3, 3)
    assert driver.step(2, 1) is not None
    assert driver.device.match_prefix([*PROMPT, *OTHER]) == 0  # the next frame took the room of the cached state
    assert pages(driver) == (4, 2)


def test_cached_states_give_way_to_requests(make_driver):
    driver = make_driver(kv_pages=6)
    driver.start(0, PROMPT)
    driver.retire(0)
    assert (driver.device.match_prefix([*PROMPT, 1]), pages(driver)) == (40, (0, 6))
    driver.generate(1, OTHER * 2, 8)
    assert (driver.device.match_prefix([*PROMPT, 1]), pages(driver)) == (0, (0, 6))


def test_what_can_never_fit_is_refused_at_opening(make_driver):
    driver = make_driver(kv_pages=4)
    with pytest.raises(RequestExceedsPool, match=r"5 KV pages .* 4 in all"):
        driver.open(0, [1] * 50, outputs=15)
    with pytest.raises(RequestExceedsPool):
        driver.open(0, [1] * 40, outputs=25)
    driver.open(0, [1] * 40, outputs=24)
    assert pages(driver) == (0, 4)


def test_a_snapshot_without_room_is_left_out(make_driver):
    driver = make_driver(kv_pages=3, snapshot_rows=1)
    assert driver.device.free_snapshot_rows() == 1
    driver.open(0, PROMPT, outputs=8)
    driver.read(0, 20)
    driver.capture(0)  # two pages are the request's, the third becomes the state's
    assert (driver.device.match_prefix(PROMPT), pages(driver)) == (20, (2, 1))
    said = driver.read(0, 20)  # and is taken back
    assert (driver.device.match_prefix(PROMPT), pages(driver)) == (0, (3, 0))
    assert driver.device.free_snapshot_rows() == 0
    driver.capture(0)
    assert driver.device.match_prefix([*PROMPT, 1]) == 0
    driver.step(1, 0)
    driver.retire(0)
    assert driver.device.match_prefix([*PROMPT, *said, 1]) == 41
    assert driver.device.free_snapshot_rows() == 1


@pytest.mark.parametrize("kind", [GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT])
def test_a_request_that_is_preempted_within_its_prompt_keeps_what_it_read_without_a_free_page(kind, make_driver):
    """Snapshot programs take retiring requests along with others."""
    driver = make_driver(kv_pages=3)
    driver.open(0, PROMPT, outputs=8)
    driver.read(0, 35)
    assert pages(driver) == (3, 0)
    driver.run(state_graph(kind), (0, 1, False, True))
    with pytest.raises(InvalidFrame, match="no open request that can run"):
        driver.submit(prefill(16), (0, 5))
    driver.device.close_request(0)
    assert (driver.device.match_prefix(PROMPT), pages(driver)) == (35, (0, 3))


@pytest.mark.parametrize("kind", [GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT])
def test_a_request_that_retires_before_it_was_set_up_leaves_nothing(kind, driver):
    driver.device.open_request(0, PROMPT, 8, GREEDY)
    driver.run(state_graph(kind), (0, 1, False, True))
    driver.device.close_request(0)
    assert (driver.device.match_prefix(PROMPT), pages(driver)[0]) == (0, 0)


def test_without_state_programs_nothing_is_cached_and_pages_are_reserved_whole(make_driver):
    driver = make_driver(kv_pages=6, snapshot_rows=0)
    driver.open(0, PROMPT, outputs=40)
    assert pages(driver) == (5, 1)
    assert (driver.device.match_prefix(PROMPT), driver.device.free_snapshot_rows()) == (0, 0)
    with pytest.raises(PagesExhausted):
        driver.open(1, PROMPT)


def test_a_slot_is_set_up_before_it_runs_and_runs_no_more_once_retired(driver):
    device = driver.device
    device.open_request(0, PROMPT, 8, GREEDY)
    for shape in (prefill(64), state_graph(GraphKind.SNAPSHOT)):
        with pytest.raises(InvalidFrame, match=r"init or restore|set up False"):
            driver.submit(shape, (0, 1))
    driver.run(state_graph(GraphKind.INIT), (0, 1))
    driver.read(0, 40)
    driver.capture(0, GraphKind.TERMINAL_SNAPSHOT)
    with pytest.raises(InvalidFrame, match="no open request that can run"):
        driver.submit(decode(1), (0, 1))


def test_a_state_that_is_not_cached_is_no_start(driver):
    for cached in (5, len(PROMPT), 400):
        with pytest.raises(InvalidRequest, match=f"first {cached} tokens"):
            driver.device.open_request(0, PROMPT, 8, GREEDY, cached_tokens=cached)
    with pytest.raises(InvalidRequest, match="emitted_before is 40"):
        driver.device.open_request(0, PROMPT, 8, GREEDY, emitted_before=40)
    with pytest.raises(InvalidRequest, match="logit_bias"):
        driver.device.open_request(0, PROMPT, 8, SamplingParameters(logit_bias=((999, 1.0),)))
    assert pages(driver) == (0, driver.device.limits.kv_pages)


@pytest.mark.parametrize(
    ("anchor", "cursor", "retires", "role"),
    [
        (20, 20, False, Role.ANCHOR),
        (20, 10, False, Role.EXTRA),
        (20, 40, False, Role.EXTRA),
        (None, 40, False, Role.PROMPT_END),
        (None, 10, False, Role.EXTRA),
        (20, 20, True, Role.TERMINAL),
        (None, 45, True, Role.TERMINAL),
    ],
)
def test_a_states_role_follows_from_its_endpoint(anchor, cursor, retires, role):
    request = OpenRequest(0, PROMPT, PROMPT, GREEDY, RequestPages([]), 60, 0, anchor, 0, True, cursor)
    assert request.role(retires) is role


def test_preparing_a_device_that_has_everything_leaves_no_trace(make_driver):
    driver = make_driver(draft_tokens=2, speculative_token_capacity=8, mixed=True)
    driver.device.prepare(lambda *_: None)
    assert (pages(driver), driver.device.busy_ns()) == ((0, driver.device.limits.kv_pages), 0)
    assert driver.generate(0, PROMPT, 8) == make_driver().generate(0, PROMPT, 8)
