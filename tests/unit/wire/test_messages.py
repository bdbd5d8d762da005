"""Messages come out of a frame as they went in, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest

from shoal.wire.messages import Entry, Message, Open, Ping, Refill, Step, decode, decode_control, encode

OPEN = Open(7, 3, 5, 20, 0.5, 40, 0.9, 0.05, 2**64 - 1)


@pytest.mark.parametrize(
    "message",
    [
        OPEN,
        Step(2, 9, "w0", ("w1", "driver"), (Entry(7, 0, 0, (1, 2, 3), sample=True),), (OPEN,)),
        Refill(2, 7, 1, 4, (5, 6, 7), (2, 1), "w0"),
    ],
)
def test_a_message_survives_its_frame(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("frame", [b"", b"\x00", b"GET / HTTP/1.1", encode(Ping(1)), encode(OPEN)[:-1]])
def test_anything_else_is_refused(frame: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(frame)


def test_the_control_socket_takes_no_data_message() -> None:
    assert decode_control(encode(Ping(5))) == Ping(5)
    with pytest.raises(msgspec.DecodeError):
        decode_control(encode(OPEN))
