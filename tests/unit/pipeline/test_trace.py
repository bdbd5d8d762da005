"""The tracer: given when things happened, where each token's time went."""

from __future__ import annotations

import pytest

from shoal.core.request_times import RequestTimes
from shoal.pipeline.trace import REMEMBERED_REQUESTS, REMEMBERED_STEPS, Tracer


def tracer(num_stages: int = 2) -> Tracer:
    made = Tracer()
    made.num_stages = num_stages
    return made


def one(trace: Tracer, request_id: str | None = "req-1") -> RequestTimes:
    (found,) = trace.find(request_id)
    return found


def step(
    trace: Tracer,
    step_id: int,
    sent_s: float,
    arrived_s: float,
    *stages: tuple[float, float],
    sessions: tuple[int, ...] = (1,),
    is_token: bool = True,
) -> None:
    """A whole trip, the last stage's report behind the result, as on the wire."""
    trace.sent(step_id, len(sessions), sent_s)
    for stage, (queue_s, compute_s) in enumerate(stages[:-1]):
        trace.reported(step_id, stage, queue_s, compute_s)
    for session in sessions:
        trace.accepted(session, step_id, arrived_s, is_token=is_token)
    trace.reported(step_id, len(stages) - 1, *stages[-1])


def by_name(times: RequestTimes, row: tuple[float, ...]) -> dict[str, float]:
    """The parts that took any time."""
    return {n: pytest.approx(s, abs=1e-6) for n, s in zip(times.columns, row, strict=True) if s > 1e-9}


def test_a_trip_is_split_into_stages_and_hops() -> None:
    trace = tracer()
    trace.submitted(1, "chatcmpl-1", 5, 10.0)
    step(trace, 1, 10.0, 11.0, (0.1, 0.3), (0.05, 0.25))
    assert by_name(one(trace), one(trace).prefill) == {
        "stage 0 queue": 0.1,
        "stage 0 compute": 0.3,
        "stage 1 queue": 0.05,
        "stage 1 compute": 0.25,
        "wire": 0.3,
    }


def test_waiting_for_room_is_admission_and_waiting_for_a_turn_is_the_drivers_queue() -> None:
    trace = tracer(1)
    trace.submitted(1, "chatcmpl-1", 5, 10.0)
    step(trace, 1, 12.0, 13.0, (0.0, 1.0))
    step(trace, 2, 13.5, 14.5, (0.0, 1.0))
    times = one(trace)
    assert by_name(times, times.prefill) == {"admission": 2.0, "stage 0 compute": 1.0}
    assert by_name(times, times.tokens[0]) == {"driver queue": 0.5, "stage 0 compute": 1.0}


def test_until_a_step_is_on_the_wire_the_driver_has_it() -> None:
    trace = tracer(1)
    trace.submitted(1, "chatcmpl-1", 5, 10.0)
    trace.sent(1, 1, 10.0)
    trace.left(10.25)
    trace.accepted(1, 1, 11.0, is_token=True)
    trace.reported(1, 0, 0.0, 0.75)
    assert by_name(one(trace), one(trace).prefill) == {"driver": 0.25, "stage 0 compute": 0.75}


def test_chunks_of_one_prompt_in_two_stages_at_once_are_not_counted_twice() -> None:
    trace = tracer()
    trace.submitted(1, "chatcmpl-1", 30, 0.0)
    for chunk in (1, 2, 3):
        trace.sent(chunk, 1, 0.0)
    # Each stage takes 1 s for a chunk: results come at 2, 3 and 4 s.
    for chunk in (1, 2, 3):
        trace.reported(chunk, 0, float(chunk - 1), 1.0)
        trace.accepted(1, chunk, 1.0 + chunk, is_token=chunk == 3)
        trace.reported(chunk, 1, 0.0, 1.0)
    assert by_name(one(trace), one(trace).prefill) == {"stage 0 compute": 1.0, "stage 1 compute": 3.0}


def test_the_sum_is_the_wall_time_whatever_the_stages_claim() -> None:
    trace = tracer()
    trace.submitted(1, "chatcmpl-1", 5, 0.0)
    step(trace, 1, 0.2, 1.0, (5.0, 5.0), (5.0, 5.0))
    step(trace, 2, 1.0, 1.5, (0.0, 0.0), (0.0, 0.0))
    trace.ended(1, "stop", 1.5)
    times = one(trace)
    assert times.wall_s == sum(times.prefill) + sum(times.decode) == pytest.approx(1.5)


def test_time_that_a_lost_step_took_is_a_stall() -> None:
    trace = tracer(1)
    trace.submitted(1, "chatcmpl-1", 5, 0.0)
    trace.sent(1, 1, 0.0)
    trace.left(0.0)
    trace.sent_again(1, 2.0)
    trace.accepted(1, 1, 3.0, is_token=True)
    trace.reported(1, 0, 0.0, 1.0)
    assert by_name(one(trace), one(trace).prefill) == {"stall": 2.0, "stage 0 compute": 1.0}


def test_a_step_of_several_sessions_counts_for_each() -> None:
    trace = tracer(1)
    trace.submitted(1, "chatcmpl-1", 5, 0.0)
    trace.submitted(2, "chatcmpl-2", 5, 0.0)
    step(trace, 1, 0.0, 1.0, (0.25, 0.75), sessions=(1, 2))
    assert one(trace, "req-1").prefill == one(trace, "req-2").prefill
    assert sum(one(trace, "req-2").prefill) == pytest.approx(1.0)


def test_a_result_whose_report_never_comes_is_attributed_with_what_is_known() -> None:
    trace = tracer()
    trace.submitted(1, "chatcmpl-1", 5, 0.0)
    trace.sent(1, 1, 0.0)
    trace.reported(1, 0, 0.0, 0.4)
    trace.accepted(1, 1, 1.0, is_token=True)
    step(trace, 2, 1.0, 2.0, (0.0, 0.5), (0.0, 0.5))
    times = one(trace)
    assert by_name(times, times.prefill) == {"stage 0 compute": 0.4, "wire": 0.6}
    assert by_name(times, times.tokens[0]) == {"stage 0 compute": 0.5, "stage 1 compute": 0.5}


def test_a_request_is_found_by_every_name_that_its_client_saw() -> None:
    trace = tracer()
    trace.submitted(1, "chatcmpl-ab12", 5, 0.0)
    trace.submitted(2, "chatcmpl-ab12", 5, 0.0)
    trace.submitted(3, "cmpl-cd34", 7, 1.0)
    assert len(trace.find("req-ab12")) == len(trace.find("chatcmpl-ab12")) == len(trace.find("ab12")) == 2
    assert one(trace, None).request_id == "cmpl-cd34"
    assert trace.find("req-nothing") == ()


def test_outcomes_tokens_and_times_are_added_up() -> None:
    trace = tracer(1)
    trace.refused("overloaded")
    trace.submitted(1, "chatcmpl-1", 5, 0.0)
    step(trace, 1, 0.0, 1.0, (0.0, 1.0))
    step(trace, 2, 1.0, 1.06, (0.0, 0.06))
    trace.ended(1, "length", 1.06)
    trace.ended(1, "cancelled", 1.06)
    totals = trace.totals.view()
    assert totals.outcomes == {"overloaded": 1, "length": 1}
    assert (totals.prompt_tokens, totals.generated_tokens) == (5, 2)
    first, between = totals.time_to_first_token, totals.inter_token
    assert first.bounds[first.counts.index(1)] == 1.0
    assert between.bounds[between.counts.index(1)] == 0.075
    assert (first.sum_s, between.sum_s) == (pytest.approx(1.0), pytest.approx(0.06))
    assert totals.prefill["stage 0 compute"] == pytest.approx(1.0)
    assert totals.decode["stage 0 compute"] == pytest.approx(0.06)


def test_memory_is_bounded() -> None:
    trace = tracer(1)
    for session in range(3 * REMEMBERED_REQUESTS):
        trace.submitted(session, f"chatcmpl-{session}", 5, 0.0)
        trace.ended(session, "cancelled", 0.0)
    assert trace.find("chatcmpl-0") == ()
    assert one(trace, f"req-{3 * REMEMBERED_REQUESTS - 1}").outcome == "cancelled"
    for step_id in range(3 * REMEMBERED_STEPS):
        trace.sent(step_id, 1, 0.0)
    assert len(trace._steps) == len(trace._leaving) == REMEMBERED_STEPS


def test_a_step_that_is_over_is_forgotten() -> None:
    trace = tracer(1)
    trace.submitted(1, "chatcmpl-1", 5, 0.0)
    step(trace, 1, 0.0, 1.0, (0.0, 1.0))
    assert trace._steps == {}
