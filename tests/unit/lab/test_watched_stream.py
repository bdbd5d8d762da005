"""What a stream's silences are, from the moments at which its pieces came."""

from __future__ import annotations

import pytest

from shoal.gateway.client import endpoint_at
from shoal.lab.watched_stream import StreamThread, WatchedStream
from tests.unit.gateway.running_gateway import MODEL, Gate, running_gateway


def stream_of(*arrivals_s: float) -> WatchedStream:
    return WatchedStream([(at_s, "x") for at_s in arrivals_s])


def test_the_stall_is_the_longest_silence_that_lasted_beyond_the_fault() -> None:
    assert stream_of(1, 5, 6, 9, 10).stall_s(6.5) == 3
    assert stream_of(1, 5, 6, 7, 9).stall_s(6.5) == 2, "not the one that was over before"
    assert stream_of(1, 5, 6, 7, 9).stall_s(5) == 2, "what came at the moment itself came before"


def test_where_nothing_had_come_the_silence_begins_with_the_fault() -> None:
    assert stream_of(7, 8).stall_s(3) == 4


def test_a_stream_that_was_over_did_not_stall() -> None:
    assert stream_of(1, 2).stall_s(3) == 0
    assert stream_of().stall_s(3) == 0


@pytest.mark.parametrize(("arrivals_s", "step_s"), [((), 0), ((1,), 0), ((1, 2, 5, 7, 9), 2)])
def test_a_step_is_the_median_gap(arrivals_s: tuple[float, ...], step_s: float) -> None:
    assert stream_of(*arrivals_s).step_s == step_s


def test_a_thread_reads_pieces_as_they_come_and_says_when_there_are_enough() -> None:
    gate = Gate()
    with running_gateway() as gateway:
        gateway.follow("one", "two", gate, "three")
        body: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "?"}]}
        thread = StreamThread(endpoint_at(gateway.url), body)
        thread.start()
        assert thread.wait_for_pieces(2)
        gate.open()
        assert not thread.wait_for_pieces(9)
        thread.join()
    assert (thread.stream.text, thread.stream.error) == ("onetwothree", None)


def test_a_broken_answer_leaves_its_error() -> None:
    thread = StreamThread(endpoint_at("http://127.0.0.1:9"), {})
    thread.start()
    assert not thread.wait_for_pieces(1)
    assert "Nothing answers" in str(thread.stream.error)
