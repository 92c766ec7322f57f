"""Two frames in flight: the next is planned while one runs, and each completes and is published in its turn."""

from __future__ import annotations

from service.engine.worker import PUBLICATION_NS
from service.journal.records import OutputPublished, PlanCompleted, RequestFinished
from service.settings import Settings

MS = 1_000_000


def measured(rig, output=200, **more):
    """A request that decodes, with the durations of its graphs known."""
    rig.device.patient = True
    rig.submit("a", output=output, **more)
    while sum(plan.queue_depth for plan in rig.plans()) < 2 or len(rig.core.in_flight) < 2:
        rig.step()
    rig.device.automatic = False


def test_a_second_round_is_queued_while_the_first_runs(rig):
    measured(rig)
    assert rig.device.most_running == 2
    older, newer = rig.plans()[-2:]
    assert (older.queue_depth, newer.queue_depth) == (1, 1)
    assert {older.frame_slot, newer.frame_slot} == {0, 1}
    rig.step()
    assert len(rig.device.queue) == 2, "and no third"


def test_the_loop_does_not_sleep_before_it_has_tried_to_queue_behind_a_frame(rig):
    measured(rig)
    rig.device.finish()
    rig.device.finish()
    rig.step(2)
    while len(rig.core.in_flight) < 2:
        assert rig.worker.wait_ns() == 0
        rig.step()
    rig.step()
    assert rig.worker.wait_ns() > 0


def test_a_publication_waits_for_the_next_result_while_both_slots_are_taken(rig):
    """It is then written with what that result decides, in one write."""
    measured(rig)
    rig.step()
    rig.device.finish()
    rig.step()
    while len(rig.core.in_flight) < 2:
        rig.step()
    published = [type(record) for record in rig.core.records]
    assert published == [OutputPublished]
    assert 0 < rig.worker.wait_ns() <= PUBLICATION_NS
    writes = len(rig.journal.writes)
    rig.device.finish()
    rig.step()
    assert len(rig.journal.writes) == writes + 1
    kinds = {type(record) for record in rig.journal.writes[-1][0]}
    assert kinds >= {OutputPublished, PlanCompleted}


def test_a_publication_is_written_soon_without_another_result(rig):
    measured(rig)
    rig.step()
    rig.device.finish()
    rig.step()
    while len(rig.core.in_flight) < 2:
        rig.step()
    rig.clock.advance(PUBLICATION_NS)
    assert rig.worker.wait_ns() == 0
    rig.step()
    assert rig.core.records == []
    assert isinstance(rig.journal.writes[-1][0][0], OutputPublished)


def test_an_ending_is_written_at_once_although_both_slots_are_taken(rig):
    measured(rig)
    rig.step()
    rig.cancel("a")
    rig.step()
    assert any(isinstance(record, RequestFinished) for record in rig.core.records)
    assert len(rig.core.in_flight) == 2
    assert rig.worker.wait_ns() == 0


def test_frame_slots_alternate_and_every_plan_is_alone_in_its_slot(rig):
    rig.device.patient = True
    rig.submit("a", output=30)
    rig.submit("b", output=20)
    rig.settle()
    running: dict[int, int] = {}
    for _, items in rig.events:
        for item in items:
            match type(item).__name__:
                case "PlanCommitted":
                    assert item.frame_slot not in running.values()
                    assert item.queue_depth == len(running)
                    running[item.fence] = item.frame_slot
                case "PlanCompleted":
                    assert min(running) == item.fence
                    del running[item.fence]
    assert not running
    assert rig.device.most_running == 2


def test_output_is_published_under_the_fence_that_made_it(rig):
    rig.device.scripts[10] = list(range(40, 90))
    measured(rig, output=40)
    rig.device.automatic = True
    rig.settle()
    assert rig.text("a") == list(range(40, 80))
    emitting = [done.fence for done in rig.completions() if any(lane.committed_tokens for lane in done.lanes)]
    assert [record.fence for record in rig.journal.of(OutputPublished)] == emitting


def test_a_stop_token_in_the_first_frame_discards_what_the_second_makes(rig):
    rig.device.scripts[10] = [50] * 9 + [1, 60, 61]
    measured(rig, output=200)
    while not rig.tokens("a") or rig.tokens("a")[-1].finish_reason is None:
        rig.device.finish()
        rig.step()
    assert len(rig.core.in_flight) == 1, "a frame with its next lane still runs"
    assert rig.device.held_pages() > 0
    rig.device.finish()
    rig.step(2)
    assert rig.text("a") == [50] * 9
    assert rig.ending("a").output_tokens == 10
    assert rig.completions()[-1].lanes[0].committed_tokens == 0
    assert rig.device.held_pages() == 0
    assert rig.core.scheduler.resident_count == 0


def test_a_cancel_with_two_frames_in_flight_frees_the_pages_after_the_second(rig):
    measured(rig)
    rig.cancel("a")
    rig.step(2)
    assert rig.ending("a").finish_reason == "abort"
    rig.device.finish()
    rig.step()
    assert rig.device.held_pages() > 0
    rig.device.finish()
    rig.step()
    assert rig.device.held_pages() == 0


def test_a_lane_that_fails_in_both_frames_ends_its_request_once(rig):
    measured(rig)
    rig.device.error = "RuntimeError: broken"
    rig.device.finish()
    rig.step()
    rig.device.error = "RuntimeError: broken again"
    rig.device.finish()
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("a").error == "RuntimeError: broken"
    assert rig.device.held_pages() == 0


def test_host_stop_strings_keep_a_request_from_being_queued_ahead(rig):
    rig.device.patient = True
    rig.submit("a", output=60, host_stop=True)
    rig.settle()
    assert rig.device.most_running == 1


def test_both_frames_are_abandoned_at_the_end(rig):
    measured(rig)
    rig.worker.begin_stop()
    rig.worker.finish("stopped")
    assert [done.outcome for done in rig.completions()[-2:]] == ["abandoned", "abandoned"]
    assert len(rig.plans()) == len(rig.completions())


def test_a_frame_that_the_device_does_not_take_fails_in_its_turn(rig):
    measured(rig)
    rig.device.finish()
    rig.device.refuse("no such lane")
    rig.step()
    assert len(rig.core.in_flight) == 2
    assert rig.ending_of("a") is None, "the frame before it still runs"
    rig.device.finish()
    rig.step()
    assert rig.worker.wait_ns() == 0
    rig.step(2)
    assert "no such lane" in rig.ending("a").error
    assert [done.outcome for done in rig.completions()[-2:]] == ["completed", "failed"]
    assert rig.device.held_pages() == 0
    rig.device.automatic = True
    rig.submit("b")
    rig.settle()
    assert rig.ending("b").finish_reason == "length"


def test_settings_reach_the_scheduler(make_rig):
    rig = make_rig(drafts=3, verification="fixed:4", fraction=0.25)
    state = rig.core.scheduler._state
    assert state.checkpoint_fraction == 0.25
    rig.submit("a", output=30)
    rig.settle()
    rounds = [plan.shape for plan in rig.plans() if plan.shape.kind == "speculative"]
    assert {shape.target_width for shape in rounds} == {4}
    assert Settings(data_dir="d", database="sqlite://", threads=1).verification == "adaptive"
