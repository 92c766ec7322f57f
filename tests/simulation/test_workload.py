"""Arrivals: times, sessions, prefixes and what a file can get wrong."""

from __future__ import annotations

import pytest

from scheduler.simulation.errors import InvalidTable, SimulationError
from scheduler.simulation.workload import parse_arrivals

HEADER = "time_s,prompt_tokens,output_tokens"


def parsed(*lines: str, header: str = HEADER, **options):
    return parse_arrivals("\n".join((header, *lines)) + "\n", "a.csv", **options)


def test_requests_come_in_order_of_time_whatever_the_order_of_rows():
    workload = parsed("2,20,2", "1,10,1")
    assert [(a.index, a.time_ns, a.prompt_tokens) for a in workload.arrivals] == [
        (0, 1_000_000_000, 10),
        (1, 2_000_000_000, 20),
    ]


def test_a_rate_scale_divides_times_and_a_number_of_requests_takes_the_first():
    workload = parsed("1,10,1", "3,10,1", "9,10,1", rate_scale=2, requests=2)
    assert [a.time_ns for a in workload.arrivals] == [500_000_000, 1_500_000_000]


def test_later_turns_of_a_session_have_no_time_of_their_own_and_keep_their_think_time():
    header = "time_s,prompt_tokens,output_tokens,session_id,turn,shared_prefix_tokens,think_s"
    lines = ("0,10,1,7,0,0,0", "1,10,1,8,0,0,0", "2,30,1,7,1,12,4.5", "9,50,1,7,2,30,1")
    workload = parsed(*lines, header=header, rate_scale=3)
    assert [a.time_ns for a in workload.arrivals] == [0, 333_333_333, None, None]
    assert dict(workload.next_turn) == {0: 2, 2: 3}
    assert workload.arrivals[2].think_ns == 4_500_000_000
    assert {a.prefix for a in workload.arrivals} == {"session 7", "session 8"}


def test_block_ids_are_read_as_ids_and_ranges():
    header = HEADER + ",shared_prefix_tokens,prefix_group,block_ids_512"
    arrival = parsed("0,3000,1,512,14,0;14-17", header=header).arrivals[0]
    assert (arrival.blocks, arrival.prefix, arrival.shared_prefix_tokens) == ((0, 14, 15, 16, 17), "group 14", 512)


@pytest.mark.parametrize(("time_s", "think_s", "rate_scale"), [("2e9", "0", 1), ("1", "0", 1e-10), ("0", "2e9", 1)])
def test_times_that_the_simulated_clock_cannot_hold_are_refused(time_s, think_s, rate_scale):
    with pytest.raises(InvalidTable, match=r"a.csv, line 2: (time_s|think_s) is .* at most 1e\+09"):
        parsed(f"{time_s},10,1,{think_s}", header=HEADER + ",think_s", rate_scale=rate_scale)


def test_a_column_that_is_there_twice_is_refused():
    with pytest.raises(InvalidTable, match=r"a.csv has the column time_s twice"):
        parsed("0,10,1,5", header=HEADER + ",time_s")


def test_a_request_for_no_output_token_gets_one_and_is_counted():
    workload = parsed("0,10,0", "1,10,5")
    assert [a.output_tokens for a in workload.arrivals] == [1, 5]
    assert workload.empty_outputs == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a.csv is empty; it needs the columns time_s, prompt_tokens, output_tokens"),
        (HEADER, "a.csv has a header but no rows"),
        ("time_s,prompt_tokens\n0,1", "a.csv lacks the column output_tokens"),
        (HEADER + "\n0,-5,1", "a.csv, line 2: prompt_tokens is '-5'; it must be a whole number from 1"),
        (HEADER + "\n0,0,1", "line 2: prompt_tokens is '0'"),
        (HEADER + "\n\n-1,5,1", "line 3: time_s is '-1'; it must be a finite number of at least 0"),
        (HEADER + "\nnan,5,1", "line 2: time_s is 'nan'"),
        (HEADER + "\n0,5,99999999999", "line 2: output_tokens is '99999999999'"),
        (HEADER + "\n0,5", "line 2: 2 values for 3 columns"),
        (HEADER + ",block_ids_512\n0,5,1,9-3", "block_ids_512 is '9-3'; it must be ids and rising ranges"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(text, words):
    with pytest.raises(InvalidTable) as caught:
        parse_arrivals(text, "a.csv")
    assert words in str(caught.value)


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_a_rate_scale_that_is_no_positive_number_is_refused(scale):
    with pytest.raises(SimulationError, match="rate scale"):
        parsed("0,1,1", rate_scale=scale)
