"""The entry rule, clause by clause: given what a worker holds and what comes, what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shoal.core.placement import DRIVER
from shoal.engine.interface import Chunk
from shoal.wire.messages import (
    Close,
    Closed,
    Entry,
    PeersTaken,
    Pull,
    PullTaken,
    Received,
    Refill,
    Refused,
    Result,
    StageReport,
    Step,
)
from shoal.worker.acknowledgements import ACKNOWLEDGE_AFTER_S
from shoal.worker.outbox import Send
from shoal.worker.protocol import MAX_FAILURES, MAX_QUEUED_TASKS
from tests.unit.worker.one_worker import (
    AFTER,
    BEFORE,
    ME,
    RETRY_S,
    SAMPLING,
    OneWorker,
    ends_of,
    entry,
    expected_draw,
    expected_rows,
    opened,
    rows_of,
    tokens_of,
)

# ---------------------------------------------------------------- start = held


def test_the_next_entry_is_computed_and_sent_on_to_the_next_hop() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4), opens=[opened(1)], step_id=7)
    assert worker.work() == 1
    (send,) = worker.take_sends(Step)
    assert send.to == AFTER
    assert isinstance(send.message, Step)
    assert send.message == Step(1, 7, ME, (DRIVER,), (entry(1, 0, 4),), (opened(1),))
    np.testing.assert_array_equal(send.rows, expected_rows(1, 0, 4))


def test_the_last_stage_tells_the_driver_what_it_drew() -> None:
    worker = OneWorker("last")
    worker.step(entry(1, 0, 4), entry(2, 0, 4, sample=True), opens=[opened(1), opened(2)])
    worker.work()
    (send,) = worker.take_sends(Result)
    assert send.to == DRIVER
    assert isinstance(send.message, Result)
    ends = [(o.session, o.start, o.stop, o.token) for o in send.message.outputs]
    assert ends == [(1, 0, 4, None), (2, 0, 4, expected_draw(2, 4))]


def test_the_first_stage_takes_tokens_and_no_rows() -> None:
    worker = OneWorker("first")
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.work()
    (send,) = worker.take_sends(Step)
    np.testing.assert_array_equal(send.rows, expected_rows(1, 0, 4, "first"))


def test_a_step_that_is_computed_at_once_is_reported_and_not_acknowledged_apart() -> None:
    worker = OneWorker()
    worker.now_s = 10.0
    worker.step(entry(1, 0, 4), opens=[opened(1)], step_id=3)
    assert worker.core.last_step_received == 3
    assert worker.core.next_due_s == 10.0 + ACKNOWLEDGE_AFTER_S
    worker.now_s = 10.04
    worker.work()
    assert worker.core.next_due_s is None
    worker.tick_at(20.0)
    told = [send.message for send in worker.take_sends((Received, StageReport))]
    assert [(type(message), message.step_id) for message in told] == [(StageReport, 3)]


def test_a_step_that_takes_longer_is_acknowledged_before_it_is_reported() -> None:
    worker = OneWorker()
    worker.now_s = 10.0
    worker.step(entry(1, 0, 4), opens=[opened(1)], step_id=3)
    worker.tick_at(10.0 + ACKNOWLEDGE_AFTER_S - 0.01)
    assert worker.take(Received) == []
    worker.tick_at(10.0 + ACKNOWLEDGE_AFTER_S)
    assert worker.take(Received) == [Received(1, 3, ME)]
    worker.now_s = 12.0
    worker.work()
    assert worker.take(StageReport) == [StageReport(1, 3, ME, 2.0, 0.25, ((1, 4),))]


def test_a_step_that_is_parked_is_acknowledged() -> None:
    worker = OneWorker()
    worker.now_s = 10.0
    worker.step(entry(1, 4, 8), opens=[opened(1)], step_id=3)
    worker.work()
    worker.tick_at(10.0 + ACKNOWLEDGE_AFTER_S)
    assert worker.take(Received) == [Received(1, 3, ME)]


def test_rows_pass_through_without_being_copied() -> None:
    worker = OneWorker()
    arrived = np.concatenate([rows_of(1, 0, 4), rows_of(2, 0, 3)])
    worker.step(entry(1, 0, 4), entry(2, 0, 3), opens=[opened(1), opened(2)], rows=arrived)
    worker.work()
    ((_, given, computed),) = worker.engine.calls
    assert given is arrived
    assert computed is not None
    (send,) = worker.take_sends(Step)
    assert send.rows is computed.rows


def test_a_lone_entry_is_given_a_view_of_what_arrived() -> None:
    worker = OneWorker()
    arrived = rows_of(1, 0, 4)
    worker.step(entry(1, 0, 4), opens=[opened(1)], rows=arrived)
    worker.work()
    assert worker.engine.calls[0][1] is not None
    assert np.shares_memory(worker.engine.calls[0][1], arrived)


# ---------------------------------------------------------------- start < held


def test_a_held_entry_is_answered_from_the_journal_with_the_same_rows() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.step(entry(1, 0, 8))
    assert worker.work() == 0
    (send,) = worker.take_sends(Step)
    assert send.message.entries == (entry(1, 0, 8),)
    np.testing.assert_array_equal(send.rows, expected_rows(1, 0, 8))


def test_of_a_partly_held_entry_only_the_rest_is_computed_and_all_of_it_sent_on() -> None:
    worker = OneWorker()
    worker.hold(1, 5)
    worker.step(entry(1, 2, 9))
    assert worker.work() == 1
    ((chunks, _, _),) = worker.engine.calls
    assert (chunks[0].start, tuple(chunks[0].tokens)) == (5, tokens_of(1, 5, 9))
    (send,) = worker.take_sends(Step)
    assert ends_of(send.message.entries) == [(1, 2, 9)]
    np.testing.assert_array_equal(send.rows, expected_rows(1, 2, 9))


def test_held_and_new_entries_of_one_step_go_on_together_in_their_order() -> None:
    worker = OneWorker()
    worker.hold(1, 4)
    worker.step(entry(2, 0, 3), entry(1, 0, 4), entry(3, 0, 2), opens=[opened(2), opened(3)])
    assert worker.work() == 1
    (send,) = worker.take_sends(Step)
    assert ends_of(send.message.entries) == [(2, 0, 3), (1, 0, 4), (3, 0, 2)]
    want = [expected_rows(2, 0, 3), expected_rows(1, 0, 4), expected_rows(3, 0, 2)]
    np.testing.assert_array_equal(send.rows, np.concatenate(want))


def test_a_draw_is_repeated_and_not_drawn_again() -> None:
    worker = OneWorker("last")
    worker.step(entry(1, 0, 4, sample=True), opens=[opened(1)])
    worker.work()
    first = worker.take(Result)
    worker.step(entry(1, 0, 4, sample=True))
    assert worker.work() == 0
    assert worker.take(Result) == first


def test_a_draw_that_is_not_known_is_computed_anew() -> None:
    worker = OneWorker("last")
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.work()
    worker.take(Result)
    worker.step(entry(1, 0, 4, sample=True))
    assert worker.work() == 1
    (result,) = worker.take(Result)
    assert result.outputs[0].token == expected_draw(1, 4)


def test_a_lost_draw_of_a_later_entry_makes_the_worker_pull_what_lies_before() -> None:
    worker = OneWorker("last")
    worker.hold(1, 5)
    worker.step(entry(1, 4, 5, sample=True))
    assert worker.work() == 0
    (pull,) = worker.take(Pull)
    assert (pull.start, pull.stop) == (0, 4)
    worker.refill(1, 0, 4)
    worker.work()
    (result,) = worker.take(Result)
    assert result.outputs[0].token == expected_draw(1, 5)


def test_a_draw_that_the_driver_has_already_is_not_worth_the_state() -> None:
    worker = OneWorker("last")
    worker.hold(1, 9)
    worker.step(entry(1, 4, 8, sample=True))
    assert worker.work() == 0
    assert worker.take(Pull) == []
    worker.step(entry(1, 9, 10, sample=True))
    assert worker.work() == 1
    assert worker.take(Result)[0].outputs[0].token == expected_draw(1, 10)


def test_a_pull_that_goes_past_an_overtaken_entry_lets_the_newest_one_go() -> None:
    worker = OneWorker("last")
    for start in (8, 10):
        worker.step(entry(1, start, start + 1, sample=True), opens=[opened(1)])
    worker.work()
    worker.tick_at(RETRY_S)
    assert [(p.start, p.stop) for p in worker.take(Pull)] == [(0, 8), (0, 10)]
    worker.refill(1, 0, 7, 3)  # nothing is drawn behind 9, in the middle of a chunk
    worker.work()
    sent = worker.take_sends((Pull, Result))
    outputs = [output for send in sent for output in getattr(send.message, "outputs", ())]
    assert [type(send.message) for send in sent] == [Result, Result]
    assert [(o.start, o.token) for o in outputs] == [(8, None), (10, expected_draw(1, 11))]


def test_what_was_drawn_stays_true_when_the_state_is_lost() -> None:
    failing: list[int] = []
    worker = OneWorker("last", fails=lambda chunks: bool(failing))
    sampling = replace(SAMPLING, top_logprobs=2)
    worker.step(entry(1, 0, 4, sample=True), opens=[opened(1, sampling=sampling)])
    worker.work()
    (first,) = worker.take(Result)
    assert first.outputs[0].logprobs is not None
    failing.append(1)
    worker.step(entry(1, 4, 5))
    job = worker.next_job()
    assert job is not None
    worker.finish(job, worker.run_job(job))
    failing.clear()
    worker.work()
    worker.refill(1, 0, 4)
    worker.work()
    worker.take(Result)
    worker.step(entry(1, 0, 4, sample=True))
    assert worker.work() == 0
    assert worker.take(Result)[0].outputs == first.outputs


def test_the_sampler_is_told_the_answer_so_far_and_not_the_prompt() -> None:
    worker = OneWorker("last")
    sampling = replace(SAMPLING, presence_penalty=1.0)
    worker.step(entry(1, 0, 10, sample=True), opens=[opened(1, prompt=8, sampling=sampling)])
    worker.work()
    draw = worker.engine.calls[0][0][0].draw
    assert draw is not None
    assert (draw.position, tuple(draw.generated)) == (10, tokens_of(1, 8, 10))


# ---------------------------------------------------------------- start > held


def test_a_gap_parks_the_entry_and_pulls_from_the_sender_of_the_step() -> None:
    worker = OneWorker()
    worker.step(entry(1, 6, 8), opens=[opened(1)], sender="w9")
    assert worker.work() == 0
    (send,) = worker.take_sends(Pull)
    assert (send.to, send.message) == ("w9", Pull(1, 1, 0, 0, 6, ME))


def test_what_was_pulled_is_computed_and_journaled_but_not_sent_on() -> None:
    worker = OneWorker()
    worker.step(entry(1, 6, 8), opens=[opened(1)])
    worker.work()
    worker.take(Step)
    worker.refill(1, 0, 4, 2)
    job = worker.next_job()
    assert job is not None
    worker.finish(job, worker.run_job(job))
    assert [kind.message for kind in worker.sent] == []
    worker.work()
    (send,) = worker.take_sends(Step)
    assert ends_of(send.message.entries) == [(1, 6, 8)]
    np.testing.assert_array_equal(send.rows, expected_rows(1, 6, 8))
    # Journaled: a successor that asks is answered at once, in the chunks of the refill.
    worker.receive(Pull(1, 1, 0, 0, 6, AFTER))
    (refill,) = worker.take_sends(Refill)
    assert refill.message.lengths == (4, 2, 2)
    np.testing.assert_array_equal(refill.rows, expected_rows(1, 0, 8))


def test_pulled_chunks_that_are_held_already_are_passed_over() -> None:
    worker = OneWorker("last")
    worker.hold(1, 4)
    worker.step(entry(1, 8, 9, sample=True))
    worker.work()
    worker.sent.clear()
    worker.refill(1, 0, 4, 4)
    assert worker.work() == 2
    (result,) = worker.take(Result)
    assert [(o.start, o.token) for o in result.outputs] == [(8, expected_draw(1, 9))]
    # The pull is over: another gap is asked for at once.
    worker.step(entry(1, 12, 13))
    worker.work()
    assert [(p.start, p.stop) for p in worker.take(Pull)] == [(9, 12)]


def test_pulled_chunks_are_computed_in_the_lengths_they_had() -> None:
    worker = OneWorker()
    worker.step(entry(1, 7, 8), opens=[opened(1)])
    worker.work()
    worker.refill(1, 0, 4, 1, 2)
    worker.work()
    assert [len(chunks[0].tokens) for chunks, _, _ in worker.engine.calls] == [4, 1, 2, 1]


def test_entries_behind_a_gap_wait_for_their_turn_whatever_order_they_came_in() -> None:
    worker = OneWorker()
    worker.step(entry(1, 6, 8), opens=[opened(1)], step_id=3)
    worker.step(entry(1, 2, 6), step_id=2)
    worker.work()
    worker.step(entry(1, 0, 2), step_id=1)
    worker.work()
    steps = worker.take(Step)
    assert [(s.step_id, *ends_of(s.entries)) for s in steps] == [
        (1, (1, 0, 2)),
        (2, (1, 2, 6)),
        (3, (1, 6, 8)),
    ]


# ---------------------------------------------------------------- pulls that come here


def test_a_pull_for_what_is_not_here_makes_the_worker_pull_itself_and_answer_later() -> None:
    worker = OneWorker()
    worker.receive(opened(1))
    worker.receive(Pull(1, 1, 0, 0, 6, AFTER))
    (mine,) = worker.take_sends(Pull)
    assert (mine.to, mine.message) == (BEFORE, Pull(1, 1, 0, 0, 6, ME))
    worker.refill(1, 0, 4)
    worker.work()
    refill, pull = worker.take_sends(Refill | Pull)  # type: ignore[arg-type]
    assert (refill.to, refill.message.start, refill.message.lengths) == (AFTER, 0, (4,))
    np.testing.assert_array_equal(refill.rows, expected_rows(1, 0, 4))
    assert (pull.message.start, pull.message.stop) == (4, 6)


def test_a_pull_waits_for_what_is_queued_already_rather_than_pulling_too() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.receive(Pull(1, 1, 0, 0, 4, AFTER))
    assert worker.take(Pull) == []
    worker.work()
    assert [r.start for r in worker.take(Refill)] == [0]


def test_an_answer_to_a_pull_is_a_copy_that_later_changes_cannot_reach() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.receive(Pull(1, 1, 0, 0, 8, AFTER))
    (refill,) = worker.take_sends(Refill)
    assert refill.rows is not None
    assert refill.rows.base is None


@pytest.mark.parametrize("start", [-1, -(2**63)])
def test_a_pull_for_positions_that_cannot_be_is_ignored(start: int) -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.receive(Pull(1, 1, 0, start, 8, AFTER))
    assert worker.sent == []


def test_a_pull_for_a_closed_session_is_confirmed_and_no_more() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.receive(Close((1,)))
    worker.take(Closed)
    worker.receive(Pull(1, 1, 0, 0, 8, AFTER))
    assert [(send.to, send.message) for send in worker.sent] == [(AFTER, PullTaken(ME))]
    assert worker.core.num_sessions == 0


# ---------------------------------------------------------------- refused, dropped


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Entry(1, 0, 2, (9, 9)), "other tokens at positions [2, 4)"),
        (Entry(1, 0, 4, ()), "an entry of 0 tokens at 4"),
        (Entry(1, 0, -1, (1, 2)), "an entry of 2 tokens at -1"),
        (entry(1, 60, 65), "65 tokens where 64 are reserved"),
        (entry(1, 4, 21), "a chunk of 17 tokens where 16 fit"),
    ],
)
def test_an_entry_that_must_not_be_computed_is_refused_and_its_neighbours_go_on(bad: Entry, why: str) -> None:
    worker = OneWorker(max_batch_tokens=16)
    worker.hold(1, 4)
    rows = np.concatenate([np.zeros((len(bad.tokens), 4), np.float32), rows_of(2, 0, 3)])
    worker.step(bad, entry(2, 0, 3), opens=[opened(2)], rows=rows)
    worker.work()
    (refused,) = [s.message for s in worker.sent if isinstance(s.message, Refused)]
    assert (refused.session, refused.sender) == (1, ME)
    assert why in refused.reason
    (step,) = worker.take_sends(Step)
    assert ends_of(step.message.entries) == [(2, 0, 3)]
    np.testing.assert_array_equal(step.rows, expected_rows(2, 0, 3))


def test_a_session_whose_slot_another_one_holds_is_refused() -> None:
    worker = OneWorker()
    worker.hold(1, 4)
    worker.step(entry(2, 0, 4), opens=[opened(2, slot=0)])
    worker.work()
    assert [r.reason for r in worker.take(Refused)] == ["slot 0 of 4 is taken or does not exist"]


@pytest.mark.parametrize("place", ["first", "middle"])
def test_rows_that_do_not_fit_their_entries_refuse_them_all(place: str) -> None:
    worker = OneWorker(place)
    worker.step(entry(1, 0, 4), entry(2, 0, 3), opens=[opened(1), opened(2)], rows=rows_of(1, 0, 6))
    worker.work()
    assert [r.session for r in worker.take(Refused)] == [1, 2]
    assert worker.engine.calls == []


def test_entries_of_closed_sessions_are_dropped_and_the_rest_of_their_step_goes_on() -> None:
    worker = OneWorker()
    worker.receive(Close((1,)))
    worker.step(entry(1, 0, 4), entry(2, 0, 3), opens=[opened(1), opened(2)])
    worker.work()
    (send,) = worker.take_sends(Step)
    assert (ends_of(send.message.entries), send.message.opens) == ([(2, 0, 3)], (opened(2),))
    np.testing.assert_array_equal(send.rows, expected_rows(2, 0, 3))


@pytest.mark.parametrize("epoch", [2, 4])
def test_steps_of_another_epoch_are_dropped(epoch: int) -> None:
    worker = OneWorker()
    worker.take_peers(3)
    worker.step(entry(1, 0, 4), opens=[opened(1)], epoch=3)
    worker.work()
    worker.sent.clear()
    worker.step(entry(1, 4, 5), epoch=epoch, step_id=9)
    assert worker.work() == 0
    assert (worker.sent, worker.core.epoch, worker.core.last_step_received) == ([], 3, 1)


def test_a_new_epoch_is_confirmed_to_the_driver_and_never_goes_back() -> None:
    worker = OneWorker()
    worker.take_peers(5)
    worker.take_peers(4)
    assert worker.take_sends(PeersTaken) == [Send(DRIVER, PeersTaken(5, ME), None)]
    worker.step(entry(1, 0, 4), opens=[opened(1)], epoch=4)
    assert (worker.work(), worker.sent) == (0, [])


def test_what_was_in_the_queue_when_its_epoch_ended_is_computed_and_kept() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.take_peers(2)
    assert worker.work() == 1
    worker.sent.clear()
    worker.step(entry(1, 0, 4), epoch=2)
    assert worker.work() == 0
    assert [(s.epoch, ends_of(s.entries)) for s in worker.take(Step)] == [(2, [(1, 0, 4)])]


# ---------------------------------------------------------------- attempts


@pytest.mark.parametrize("can_trim", [True, False])
def test_an_older_attempt_is_dropped(can_trim: bool) -> None:
    worker = OneWorker(can_trim=can_trim)
    worker.step(entry(1, 0, 4, attempt=2), opens=[opened(1)])
    worker.work()
    worker.take(Step)
    worker.step(entry(1, 4, 5, attempt=1))
    assert worker.work() == 0
    assert worker.take(Step) == []


def test_a_higher_attempt_trims_to_its_start_and_computes() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    other = Entry(1, 1, 5, (7, 8))
    worker.step(other, rows=rows_of(9, 5, 7))
    assert worker.work() == 1
    (chunk,) = worker.engine.calls[0][0]
    assert (chunk.start, tuple(chunk.tokens)) == (5, (7, 8))
    assert [ends_of(s.entries) for s in worker.take(Step)] == [[(1, 5, 7)]]
    assert worker.engine.cells_used == 7


def test_where_memory_cannot_trim_a_higher_attempt_drops_the_state_and_pulls() -> None:
    worker = OneWorker(can_trim=False)
    worker.hold(1, 8)
    worker.step(entry(1, 5, 7, attempt=1))
    assert worker.work() == 0
    assert worker.take(Pull) == [Pull(1, 1, 1, 0, 5, ME)]
    assert worker.engine.cells_used == 0
    worker.refill(1, 0, 5, attempt=1)
    worker.work()
    (send,) = worker.take_sends(Step)
    np.testing.assert_array_equal(send.rows, expected_rows(1, 5, 7))


def test_a_higher_attempt_pulls_for_itself_and_does_not_wait_for_the_older_one() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 5), opens=[opened(1)])
    worker.work()
    worker.sent.clear()
    worker.step(entry(1, 6, 7, attempt=1))
    worker.work()
    assert worker.take(Pull) == [Pull(1, 1, 1, 0, 6, ME)]


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_refill_of_another_attempt_is_ignored(attempt: int) -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 5, attempt=1), opens=[opened(1)])
    worker.work()
    worker.refill(1, 0, 4, attempt=attempt)
    assert worker.core.num_queued == 0


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_pull_of_another_attempt_is_not_answered_yet(attempt: int) -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4, attempt=1), opens=[opened(1)])
    worker.work()
    worker.sent.clear()
    worker.receive(Pull(1, 1, attempt, 0, 4, AFTER))
    assert [send.message for send in worker.sent] == [PullTaken(ME)]


# ---------------------------------------------------------------- batches


def test_more_than_a_batch_is_computed_in_turn_and_nothing_of_it_is_lost() -> None:
    worker = OneWorker(max_batch_tokens=8)
    worker.step(entry(1, 0, 6), entry(2, 0, 6), entry(3, 0, 2), opens=[opened(1), opened(2), opened(3)])
    assert worker.work() == 2
    steps = worker.take_sends(Step)
    assert [ends_of(s.message.entries) for s in steps] == [[(1, 0, 6), (3, 0, 2)], [(2, 0, 6)]]
    np.testing.assert_array_equal(steps[1].rows, expected_rows(2, 0, 6))


def test_memory_that_mixes_no_chunks_gets_one_chunk_or_single_tokens() -> None:
    worker = OneWorker(mixes_chunks=False)
    for session in (1, 2, 3):
        worker.hold(session, 4)
    worker.step(entry(1, 4, 5), entry(2, 4, 7), entry(3, 4, 5))
    assert worker.work() == 2
    assert [[len(c.tokens) for c in chunks] for chunks, _, _ in worker.engine.calls] == [[1, 1], [3]]


def test_two_entries_of_one_session_in_one_step_are_computed_one_after_the_other() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4), entry(1, 4, 6), opens=[opened(1)])
    assert worker.work() == 2
    assert not [s for s in worker.sent if isinstance(s.message, Pull)]
    assert [ends_of(s.entries) for s in worker.take(Step)] == [[(1, 0, 4)], [(1, 4, 6)]]


# ---------------------------------------------------------------- failures


def test_after_a_failed_batch_its_sessions_start_over_alone_and_others_are_not_touched() -> None:
    failures: list[int] = []

    def fails(chunks: object) -> bool:
        return bool(failures) and failures.pop() == 1

    worker = OneWorker(fails=fails)
    for session in (1, 2, 3):
        worker.hold(session, 4)
    failures.append(1)
    worker.step(entry(1, 4, 5), entry(2, 4, 5))
    worker.work()
    assert [(p.session, p.start, p.stop) for p in worker.take(Pull)] == [(1, 0, 4), (2, 0, 4)]
    worker.step(entry(3, 4, 5))
    worker.refill(1, 0, 4)
    worker.refill(2, 0, 4)
    worker.work()
    steps = worker.take_sends(Step)
    assert sorted(ends_of(s.message.entries)[0] for s in steps) == [(1, 4, 5), (2, 4, 5), (3, 4, 5)]
    for send in steps:
        ((session, start, stop),) = ends_of(send.message.entries)
        np.testing.assert_array_equal(send.rows, expected_rows(session, start, stop))


def test_a_session_that_fails_its_neighbours_is_refused_alone() -> None:
    worker = OneWorker(fails=lambda chunks: any(chunk.tokens[0] == 100 for chunk in chunks))
    worker.step(entry(1, 0, 4), entry(2, 0, 4), opens=[opened(1), opened(2)])
    worker.work()
    (refused,) = [s.message for s in worker.sent if isinstance(s.message, Refused)]
    assert refused.session == 1
    assert f"failed {MAX_FAILURES + 1} times" in refused.reason
    assert [ends_of(s.entries) for s in worker.take(Step)] == [[(2, 0, 4)]]
    assert len(worker.engine.calls) == MAX_FAILURES + 2


def test_a_position_that_always_fails_is_refused_though_what_lies_before_is_computed_each_time() -> None:
    worker = OneWorker(fails=lambda chunks: any(chunk.start == 4 for chunk in chunks))
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.step(entry(1, 4, 5))
    for _ in range(MAX_FAILURES + 1):
        worker.work()
        if any(isinstance(send.message, Refused) for send in worker.sent):
            break
        assert [(p.start, p.stop) for p in worker.take(Pull)] == [(0, 4)]
        worker.refill(1, 0, 4)
    assert [r.session for r in worker.take(Refused)] == [1]


def test_failures_that_are_followed_by_success_never_add_up() -> None:
    failing = [False]
    worker = OneWorker("first", fails=lambda chunks: failing.pop() if failing else False)
    worker.step(entry(1, 0, 1), opens=[opened(1)])
    for position in range(1, 3 * MAX_FAILURES):
        failing.append(True)
        worker.step(entry(1, position, position + 1))
        worker.work()
        worker.refill(1, 0, position)
        worker.work()
    assert worker.take(Refused) == []


def test_nor_do_failures_of_one_position_that_was_computed_between_them() -> None:
    due: set[int] = set()

    def fails(chunks: Sequence[Chunk]) -> bool:
        is_due = chunks[0].start in due
        due.discard(chunks[0].start)
        return is_due

    worker = OneWorker(fails=fails)
    worker.hold(1, 8)
    for position in range(8, 8 + MAX_FAILURES + 2):
        due.update({4, position})
        worker.step(entry(1, position, position + 1))
        for _ in range(3):  # it fails, so does the pulled chunk at 4, and then all goes well
            worker.work()
            worker.refill(1, 0, 4, *[1] * (position - 4))
        worker.work()
    assert not [s for s in worker.sent if isinstance(s.message, Refused)]
    assert worker.engine.cells_used == 8 + MAX_FAILURES + 2


def test_what_was_pulled_and_fails_is_pulled_again_and_in_the_end_refused() -> None:
    worker = OneWorker(fails=lambda chunks: any(chunk.start == 0 for chunk in chunks))
    worker.step(entry(1, 4, 5), opens=[opened(1)])
    worker.work()
    for _ in range(MAX_FAILURES + 1):
        assert [(p.start, p.stop) for p in worker.take(Pull)] == [(0, 4)]
        worker.refill(1, 0, 4)
        worker.work()
    assert [r.session for r in worker.take(Refused)] == [1]


def test_a_refusal_that_gets_lost_does_not_leave_the_pull_stuck() -> None:
    failing = [True]
    worker = OneWorker(fails=lambda chunks: bool(failing))
    worker.step(entry(1, 4, 5), opens=[opened(1)])
    worker.work()
    for _ in range(MAX_FAILURES + 1):
        worker.refill(1, 0, 4)
        worker.work()
    assert len(worker.take(Refused)) == 1
    failing.clear()
    worker.refill(1, 0, 4)
    worker.work()
    assert [ends_of(s.entries) for s in worker.take(Step)] == [[(1, 4, 5)]]


def test_a_failure_of_a_session_that_was_closed_meanwhile_touches_nobody() -> None:
    worker = OneWorker(fails=lambda chunks: any(chunk.tokens[0] == 100 for chunk in chunks))
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    job = worker.next_job()
    assert job is not None
    worker.receive(Close((1,)))
    outcome = worker.run_job(job)
    worker.finish(job, outcome)
    worker.hold(2, 8)
    worker.step(entry(2, 0, 8))
    assert worker.work() == 0
    assert worker.core.num_sessions == 1
    assert worker.engine.cells_used == 8


# ---------------------------------------------------------------- bounds


def test_past_its_bound_the_queue_takes_no_more() -> None:
    worker = OneWorker()
    for number in range(MAX_QUEUED_TASKS + 3):
        worker.step(entry(1, 0, 1), opens=[opened(1)], step_id=number)
    assert (worker.core.num_queued, worker.core.tasks_dropped) == (MAX_QUEUED_TASKS, 3)
