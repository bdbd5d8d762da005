"""Every message survives its trip; anything else is refused with one kind of error."""

from __future__ import annotations

import contextlib
import random
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.sequence import SamplingParams
from shoal.wire import messages
from shoal.wire.messages import Closed, Entry, Message, Open, Ping, Pong, Pull, Refused, Step, decode, encode

# All that a field may hold, so that no type is forgotten: built from the annotations.
_BY_TYPE = {
    int: st.integers(-(2**63), 2**64 - 1),
    str: st.text(),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
}
for _type, _strategy in _BY_TYPE.items():
    st.register_type_strategy(_type, _strategy)


# A busy machine may take long over an example; that says nothing of a message.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("kind", get_args(Message))
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    message = data.draw(st.builds(kind, **_fields(kind)))
    assert decode(encode(message)) == message


@pytest.mark.parametrize("kind", [Ping, Pong])
@given(data=st.data())
def test_control_messages_too(kind: type, data: st.DataObject) -> None:
    message = data.draw(st.builds(kind, **_fields(kind)))
    assert messages.decode_control(encode(message)) == message


def _fields(kind: type) -> dict[str, st.SearchStrategy[object]]:
    """A strategy for every field, those with a default as well."""
    return {field.name: st.from_type(field.type) for field in msgspec.structs.fields(kind)}


_SAMPLES = (
    Step(
        1,
        2,
        "w0",
        ("w1", "driver"),
        (Entry(1, 0, 0, (1, 2, 3), True),),
        (Open(1, 0, 3, 9, SamplingParams(logit_bias=((5, -100.0),), top_logprobs=2)),),
    ),
    Pull(1, 2, 0, 3, 4, "w"),
    Refused(1, "w1", "because"),
    Ping(3),
)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        encode(_SAMPLES[0])[:-1],
        encode(_SAMPLES[1]) + b"\x00",
        msgspec.msgpack.encode(["no such tag", 1, 2]),
        msgspec.msgpack.encode(["pull", 1, 2, 0, 3, "four", "w"]),
        msgspec.msgpack.encode(["pull", 1, 2]),
        msgspec.msgpack.encode({"pull": 1}),
        b"\x93\xa6closed\x90\xa1\xff",  # a name that is not UTF-8
        b"\x94\xa6closed\x90\xa1a" + b"\x91" * 100_000,  # arrays in arrays without end
        b"\x92\xa5close\xdd\xff\xff\xff\xff",  # an array said to have four thousand million items
        b"\x93\xa6closed\x90\xdb\xff\xff\xff\xff",  # a text said to have as many bytes
    ],
    ids=lambda frame: repr(bytes(frame[:16])),
)
@pytest.mark.parametrize("read", [messages.decode, messages.decode_control])
def test_what_is_no_message_is_refused(frame: bytes, read: object) -> None:
    assert callable(read)
    with pytest.raises(msgspec.DecodeError):
        read(frame)


def test_a_control_message_is_none_of_the_data_plane_and_the_other_way_round() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(encode(Ping(1)))
    with pytest.raises(msgspec.DecodeError):
        messages.decode_control(encode(Closed((1,), "w")))


@given(st.binary(max_size=60))
def test_random_bytes_are_a_message_or_refused(frame: bytes) -> None:
    for read in (messages.decode, messages.decode_control):
        with contextlib.suppress(msgspec.DecodeError):
            read(frame)


def test_damaged_messages_are_a_message_or_refused() -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        frame = bytearray(encode(rng.choice(_SAMPLES)))
        for _ in range(rng.randint(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        for read in (messages.decode, messages.decode_control):
            try:
                read(bytes(frame))
            except msgspec.DecodeError:
                continue


def test_an_entry_ends_behind_its_last_token() -> None:
    assert Entry(1, 0, 5, (1, 2, 3)).stop == 8
