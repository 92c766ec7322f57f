"""Stops of a prompt: against every chunk end tried one by one."""

from __future__ import annotations

import random

from scheduler.prompts import Prompt, Window, image_windows, joined_blocks, outside_blocks
from scheduler.records import ImageSpan, RequestSpec


def spec(prompt=100, spans=(), images=(), cached=0):
    return RequestSpec("a", prompt, 1, prompt + 1, cached_tokens=cached, atomic_spans=spans, images=images)


def plain_work(spans, consumed, segment_end, capacity):
    """The rule as it is written: go back to the start of whatever the end lies in, repeatedly."""
    end = min(consumed + capacity, segment_end)
    while (inside := [first for first, last in spans if first < end < last]) != []:
        end = inside[0]
    return max(0, end - consumed)


def random_spans(rng, tokens):
    ends = sorted(rng.sample(range(tokens + 1), 2 * rng.randint(0, 4)))
    return tuple(zip(ends[::2], ends[1::2], strict=True))


def test_work_stops_before_whatever_it_would_cut_whatever_overlaps_what():
    rng = random.Random(1)
    for _ in range(2_000):
        spans, images = random_spans(rng, 60), random_spans(rng, 60)
        blocks = joined_blocks(spec(60, spans, tuple(ImageSpan(*i) for i in images)))
        consumed = rng.randint(0, 59)
        segment_end = rng.choice([end for end in range(consumed + 1, 61) if outside_blocks(blocks, end) == end] or [60])
        prompt = Prompt(60, blocks)
        for capacity in (1, 7, 16, 64):
            expected = plain_work((*spans, *images), consumed, segment_end, capacity)
            assert prompt.work(consumed, segment_end, capacity) == expected
            assert prompt.works(consumed, segment_end, [capacity]) == [expected]


def test_overlapping_spans_are_one_block_and_touching_ones_are_two():
    assert joined_blocks(spec(spans=((0, 10), (20, 30)), images=(ImageSpan(5, 15), ImageSpan(30, 40)))) == (
        (0, 15),
        (20, 30),
        (30, 40),
    )


def test_the_next_stop_is_the_first_cut_window_or_end_ahead():
    prompt = Prompt(100, windows=(Window(10, 1), Window(50, 2)), anchor=70, extras=(30, 100))
    assert [prompt.segment_end(at) for at in (0, 29, 30, 50, 70, 99)] == [30, 30, 50, 70, 100, 100]
    prompt.window = 1
    assert prompt.segment_end(30) == 70


def test_windows_take_whole_images_in_order_while_their_features_fit():
    images = tuple(ImageSpan(first, first + 5, rows) for first, rows in ((0, 2), (10, 2), (20, 3), (30, 4), (40, 1)))
    assert image_windows(images, 0, 4) == (Window(0, 2), Window(20, 1), Window(30, 1), Window(40, 1))
    assert image_windows(images, 0, 0) == (Window(0, 5),)
    assert image_windows(images, 15, 4) == (Window(20, 1), Window(30, 1), Window(40, 1))
    assert image_windows(images, 14, 0) == (Window(10, 4),), "an image that is partly cached still needs its features"
    assert image_windows((), 0, 4) == ()
