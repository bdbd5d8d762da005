"""What a machine that joins and the head say to each other. docs/WIRE.md explains it in words.

Like messages.py: msgpack arrays whose first element is the tag. A version of the protocol may append fields
to a message; the first three of `Hello` and `Refused` never change, so that any two versions can tell each
other why they do not work together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from shoal.wire.messages import PROTOCOL_VERSION, decode_by

PROTOCOL_MINOR = 0
"""Grows when fields are appended; machines of different minors work together."""

CHUNK_BYTES = 2**20
"""Of a slice that a machine fetches, at a time."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something came that is no message of a machine. Never sent."""


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The part of a `Hello` that every version understands."""

    protocol: int
    minor: int
    shoal: str


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A machine asks to join.

    shoal, ray, python, llama: versions. address: where its workers will listen. probe_port, nonce: who
    connects there now is told the nonce, so that the head knows whether it reaches that machine.
    cpu_features: what llama.cpp's kernels there use.
    """

    protocol: int
    minor: int
    shoal: str
    ray: str
    python: str
    llama: str
    name: str
    address: str
    probe_port: int
    nonce: str
    cpu_features: tuple[str, ...] = ()


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Not you. code: "protocol", "build", "name", "address", "starting", "unknown", "replaced" or
    "garbage"; only "starting" and "unknown" are worth another try."""

    protocol: int
    minor: int
    shoal: str
    code: str
    message: str
    next_step: str | None = None


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The head reaches the machine. ray_address, ray_token: the cluster to start a Ray node for."""

    protocol: int
    minor: int
    shoal: str
    ray_address: str
    ray_token: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The Ray node runs. resource: the Ray resource that only this incarnation of the machine has.
    threads: of each worker. free_bytes: memory that workers may take. limit_bytes: of all together."""

    resource: str
    threads: int
    free_bytes: int
    limit_bytes: int


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """The machine may be given work from now on, under this name."""

    node: str


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """I am here. free_bytes: as in `Ready`, now."""

    free_bytes: int


class Alive(msgspec.Struct, frozen=True, array_like=True, tag="alive"):
    """The head's answer to a beat."""


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """The machine is to hold this file, and may fetch it. name: of its content."""

    name: str
    num_bytes: int
    sha256: str


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Send the chunk of an offered file that begins at `offset`."""

    name: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk"):
    """The answer. Frame behind it: the bytes, CHUNK_BYTES of them but for the last chunk."""

    name: str
    offset: int


class Have(msgspec.Struct, frozen=True, array_like=True, tag="have"):
    """The file is here, whole and with its digest. path: on the machine."""

    name: str
    path: str


class CannotHave(msgspec.Struct, frozen=True, array_like=True, tag="cannot_have"):
    """The file cannot be had, and why."""

    name: str
    reason: str


class EndWorker(msgspec.Struct, frozen=True, array_like=True, tag="end_worker"):
    """A worker of the head's on the machine is not needed any more, or was taken for lost."""

    pid: int


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """The machine wants to go: hand over what it carries."""


class Left(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """Nothing is there any more that others need: go."""


class Closing(msgspec.Struct, frozen=True, array_like=True, tag="closing"):
    """The head ends."""


FromNode = Hello | Ready | Beat | Ask | Have | CannotHave | Leave
FromHead = Refused | Welcome | Joined | Alive | Offer | Chunk | EndWorker | Left | Closing

_encoder = msgspec.msgpack.Encoder()
_greeting_decoder: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
_node_decoder: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
_head_decoder: msgspec.msgpack.Decoder[FromHead] = msgspec.msgpack.Decoder(FromHead)


def encode_join(message: FromNode | FromHead) -> bytes:
    return _encoder.encode(message)


def decode_from_node(frame: bytes) -> FromNode | Greeting:
    """A `Greeting` is a hello of another protocol version. Raises msgspec.DecodeError."""
    try:
        greeting = decode_by(_greeting_decoder, frame)
    except msgspec.DecodeError:
        return decode_by(_node_decoder, frame)
    return decode_by(_node_decoder, frame) if greeting.protocol == PROTOCOL_VERSION else greeting


def decode_from_head(frame: bytes) -> FromHead:
    """Raises msgspec.DecodeError."""
    return decode_by(_head_decoder, frame)
