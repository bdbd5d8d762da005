"""The data plane's socket, between channels with real keys on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import zmq

from shoal.core.placement import Endpoint, WorkerId
from shoal.wire import channel as channel_module
from shoal.wire.channel import Arrival, Channel
from shoal.wire.curve import zmq_address
from shoal.wire.messages import Close, Entry, Message, Step, encode

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
STEP = Step(1, 2, "a", ("driver",), (Entry(1, 0, 0, (1, 2), True),))
DEADLINE_S = 5.0

NewChannel = Callable[[], Channel]


def _receive(channel: Channel, count: int = 1) -> list[Arrival]:
    """Wait until so many messages have come; fails when they do not."""
    arrivals: list[Arrival] = []
    give_up_s = time.monotonic() + DEADLINE_S
    while len(arrivals) < count:
        assert time.monotonic() < give_up_s, f"{len(arrivals)} of {count} came"
        arrivals += channel.receive(0.2)
    return arrivals


def _wait_until(condition: Callable[[], bool], receiver: Channel) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s
        receiver.receive(0.05)


def _pair(channels: NewChannel) -> tuple[Channel, Channel]:
    a, b = channels(), channels()
    a.set_peers({B: b.endpoint})
    b.set_peers({A: a.endpoint})
    return a, b


def _raw_socket(channels: NewChannel, to: Channel) -> zmq.Socket[bytes]:
    """A socket of an allowed process that says whatever it likes."""
    rogue = channels()
    to.set_peers({A: rogue.endpoint})
    socket = rogue._secure.client_socket(zmq.PUSH, to.endpoint.public_key)
    socket.connect(zmq_address(to.endpoint.address, to.endpoint.port))
    rogue._outbound[B] = socket  # closed with it
    return socket


def test_a_message_and_its_rows_arrive_equal(channels: NewChannel) -> None:
    a, b = _pair(channels)
    rows = np.random.default_rng(1).standard_normal((2, 5), np.float32)
    assert a.send(B, STEP, rows)
    (arrival,) = _receive(b)
    assert arrival.message == STEP
    received = arrival.rows(5)
    assert received is not None
    assert received.dtype == np.float32
    np.testing.assert_array_equal(received, rows)


def test_both_directions_and_many_messages_keep_their_order(channels: NewChannel) -> None:
    a, b = _pair(channels)
    for number in range(200):
        assert a.send(B, Close((number,)))
        assert b.send(A, Close((-number,)))
    assert [x.message for x in _receive(b, 200)] == [Close((n,)) for n in range(200)]
    assert [x.message for x in _receive(a, 200)] == [Close((-n,)) for n in range(200)]


@pytest.mark.parametrize("num_rows", [1, 2048])
def test_rows_small_and_large_go_whole(channels: NewChannel, num_rows: int) -> None:
    a, b = _pair(channels)
    rows = np.arange(num_rows * 1536, dtype=np.float32).reshape(num_rows, 1536)
    a.send(B, STEP, rows)
    received = _receive(b)[0].rows(1536)
    assert received is not None
    np.testing.assert_array_equal(received, rows)


def test_rows_that_do_not_lie_in_one_piece_arrive_in_their_order(channels: NewChannel) -> None:
    a, b = _pair(channels)
    rows = np.arange(24, dtype=np.float32).reshape(4, 6).T
    a.send(B, STEP, rows)
    received = _receive(b)[0].rows(4)
    assert received is not None
    np.testing.assert_array_equal(received, rows)


def test_a_payload_that_is_no_rows_of_this_width_is_none(channels: NewChannel) -> None:
    a, b = _pair(channels)
    a.send(B, STEP, np.zeros((2, 5), np.float32))
    a.send(B, STEP)
    with_rows, without = _receive(b, 2)
    assert with_rows.rows(3) is None
    assert with_rows.rows(5) is not None
    assert without.rows(5) is None


def test_an_unknown_addressee_is_counted_and_nothing_waits(channels: NewChannel) -> None:
    a, _ = _pair(channels)
    assert not a.send(C, STEP)
    assert a.unsent_messages == 1


def test_a_peer_that_does_not_read_fills_a_bounded_queue(
    channels: NewChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_QUEUED_MESSAGES", 10)
    a = channels()
    # Nobody listens there: what is sent stays in the queue.
    a.set_peers({B: Endpoint("127.0.0.1", 1, a.endpoint.public_key)})
    sent = [a.send(B, STEP) for _ in range(12)]
    assert sent == [True] * 10 + [False] * 2
    assert a.unsent_messages == 2


def test_a_process_whose_key_is_not_allowed_is_not_heard(
    channels: NewChannel, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = _pair(channels)
    stranger = channels()
    stranger.set_peers({B: b.endpoint})
    stranger.send(B, Close((666,)))
    heard: list[Message] = []
    give_up_s = time.monotonic() + DEADLINE_S
    while "refused a connection" not in caplog.text:
        assert time.monotonic() < give_up_s
        heard += [x.message for x in b.receive(0.05)]
    a.send(B, STEP)
    heard += [x.message for x in _receive(b)]
    assert heard == [STEP]


def test_a_peer_that_is_taken_off_the_list_is_not_spoken_to_any_more(channels: NewChannel) -> None:
    a, b = _pair(channels)
    a.send(B, STEP)
    _receive(b)
    a.set_peers({})
    assert not a.send(B, STEP)


def test_a_peer_that_comes_back_elsewhere_is_spoken_to_there(channels: NewChannel) -> None:
    a, b = _pair(channels)
    a.send(B, STEP)
    _receive(b)
    again = channels()
    again.set_peers({A: a.endpoint})
    a.set_peers({B: again.endpoint})
    a.send(B, Close((5,)))
    assert _receive(again)[0].message == Close((5,))


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [encode(STEP)[:-2]],
        [encode(STEP), b"rows", b"and more"],
        [b"\x93\xa6closed\x90\xa1\xff"],
        [b"\x94\xa6closed\x90\xa1a" + b"\x91" * 100_000],
        [b"\x92\xa5close\xdd\xff\xff\xff\xff"],
    ],
    ids=lambda frames: repr(frames[0][:12]),
)
def test_garbage_is_counted_and_the_channel_goes_on(channels: NewChannel, frames: list[bytes]) -> None:
    b = channels()
    rogue = _raw_socket(channels, b)
    rogue.send_multipart(frames)
    rogue.send(encode(Close((1,))))
    assert [x.message for x in _receive(b)] == [Close((1,))]
    assert b.bad_messages == 1


def test_a_flood_of_garbage_does_not_flood_the_log(
    channels: NewChannel, caplog: pytest.LogCaptureFixture
) -> None:
    b = channels()
    rogue = _raw_socket(channels, b)
    for number in range(500):
        rogue.send(bytes([number % 256]) * 7)
    _wait_until(lambda: b.bad_messages == 500, b)
    assert len([r for r in caplog.records if "not ours" in r.message]) == 9


def test_a_frame_past_the_limit_is_not_taken_in_and_its_sender_may_speak_again(
    channels: NewChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_FRAME_BYTES", 100_000)
    a, b = _pair(channels)
    a.send(B, STEP, np.zeros((30_000, 1), np.float32))
    give_up_s, arrivals = time.monotonic() + DEADLINE_S, list[Arrival]()
    while not arrivals:
        # What is under way when the connection ends is lost, so this is said until it is heard.
        assert time.monotonic() < give_up_s
        a.send(B, STEP, np.zeros((20_000, 1), np.float32))
        arrivals = b.receive(0.1)
    received = arrivals[0].rows(1)
    assert received is not None
    assert len(received) == 20_000


def test_bytes_that_are_not_even_zeromq_do_no_harm(channels: NewChannel) -> None:
    import socket

    a, b = _pair(channels)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x00" * 1000):
        with socket.create_connection((b.endpoint.address, b.endpoint.port), DEADLINE_S) as raw:
            raw.sendall(garbage)
    a.send(B, STEP)
    assert _receive(b)[0].message == STEP


def test_wake_makes_a_receive_that_waits_return(channels: NewChannel) -> None:
    a = channels()
    waiting, returned = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        assert a.receive(60.0) == []
        returned.set()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(DEADLINE_S)
    a.wake()
    assert returned.wait(DEADLINE_S)
    thread.join(DEADLINE_S)


def test_a_wake_that_came_before_the_receive_is_not_lost_and_counts_once(channels: NewChannel) -> None:
    a = channels()
    for _ in range(3):
        a.wake()
    started_s = time.monotonic()
    assert a.receive(30.0) == []
    assert time.monotonic() - started_s < 30.0
    assert not a._poller.poll(0)


def test_ipv6_loopback_works() -> None:
    assert zmq_address("::1", 5) == "tcp://[::1]:5"
    assert zmq_address("127.0.0.1", 5) == "tcp://127.0.0.1:5"
