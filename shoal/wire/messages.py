"""Every message that crosses a socket, in one place. docs/WIRE.md explains them in words.

Encoded with msgpack as arrays; the first element is the tag. Boundary rows never stand inside a
message: they travel as the frame behind it. A change here bumps PROTOCOL_VERSION.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from shoal.core.sequence import Logprobs, SamplingParams

PROTOCOL_VERSION = 1


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One session's part of a step: the unit of identity and idempotency.

    start: position of the first token. tokens: their ids; they travel to every stage, which
    compares them with what it holds. sample: the last stage draws a token behind the last row.
    attempt: a higher one trims the session to `start` first.
    """

    session: int
    attempt: int
    start: int
    tokens: tuple[int, ...]
    sample: bool = False

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """What a stage must know of a session before its first entry.

    slot: the engine sequence that the session sits on, the same on every stage; the driver gives
    it to another session only when every stage has confirmed `Closed`. prompt_tokens: length of
    the prompt. reserved_tokens: what admission set aside, prompt and answer. exact_replay: what
    this stage pulls of the session, it pulls in the chunks of the first computation.
    """

    session: int
    slot: int
    prompt_tokens: int
    reserved_tokens: int
    sampling: SamplingParams
    exact_replay: bool = True


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A micro-batch on its way. Frame behind it: rows of all entries, in order; none into
    stage 0, which embeds the entries' tokens itself.

    sender: who sent this hop, and so who is asked for what is missing. route: the hops after the
    receiver, the driver last; empty where a hot standby is fed, which computes and journals but
    sends nothing on. opens: sessions whose first entry is in this step.
    """

    epoch: int
    step_id: int
    sender: str
    route: tuple[str, ...]
    entries: tuple[Entry, ...]
    opens: tuple[Open, ...] = ()


class Pull(msgspec.Struct, frozen=True, array_like=True, tag="pull"):
    """A successor asks for a session's input for `[start, stop)`. Answered by `Refill`, in windows, or by
    `PullTaken` while that must wait.

    exact: in the chunks that it was first computed in, for the same low bits; otherwise in chunks
    as long as a batch, which is faster. window: more tokens than that are not wanted at once, but for a
    whole chunk.
    """

    epoch: int
    session: int
    attempt: int
    start: int
    stop: int
    sender: str
    exact: bool = True
    window: int = 1024


class Refill(msgspec.Struct, frozen=True, array_like=True, tag="refill"):
    """What was pulled: computed and journaled by the receiver, not sent on.

    lengths: the chunks to compute the tokens in. Frame behind it: rows, unless the driver answers.
    """

    epoch: int
    session: int
    attempt: int
    start: int
    tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    sender: str


class PullTaken(msgspec.Struct, frozen=True, array_like=True, tag="pull_taken"):
    """A pull has come, and what it asks for is not there yet: who asked knows that the link stands."""

    sender: str


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """These sessions have ended: free everything held for them. Idempotent; answered by `Closed`."""

    sessions: tuple[int, ...]


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="closed"):
    """A stage holds nothing of these sessions any more; only then may the driver give their room
    to others, since a `Close` may be overtaken by the next session's first step."""

    sessions: tuple[int, ...]
    sender: str


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a process of the cluster listens, and the key it proves (core/placement.py)."""

    worker: str
    address: str
    port: int
    public_key: str


class Peers(msgspec.Struct, frozen=True, array_like=True, tag="peers"):
    """The placement as one worker must know it, from `epoch` on. Answered by `PeersTaken`; the
    driver sends no step of this epoch before all have answered.

    peers: everybody who may connect. predecessor: who is asked for missing input. feeds: hot
    standbys of the next stage, which get everything that is sent on. awaits_states: a worker that
    leaves will send its sessions here, so they are not pulled for a while.
    """

    epoch: int
    peers: tuple[Peer, ...]
    predecessor: str
    feeds: tuple[str, ...]
    awaits_states: bool = False


class PeersTaken(msgspec.Struct, frozen=True, array_like=True, tag="peers_taken"):
    """A worker has let in and can reach everybody of this epoch."""

    epoch: int
    sender: str


class HandOverTo(msgspec.Struct, frozen=True, array_like=True, tag="hand_over_to"):
    """The receiver leaves: it sends all its sessions to `successor`, and goes on meanwhile."""

    epoch: int
    successor: str


class HandingOver(msgspec.Struct, frozen=True, array_like=True, tag="handing_over"):
    """A worker that leaves will send these sessions."""

    sessions: tuple[int, ...]
    sender: str


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """One session, from a worker that leaves to its successor. Frame behind it: the engine's state
    (`state_bytes`, padded to a multiple of 4), then the journal's rows.

    tokens: those held. lengths: the chunks they were computed in. drawn: position, token picked for
    it, and its logprobs where the session asks for them. journal_from: where its rows begin; 0 unless it
    was cut.
    """

    session: int
    attempt: int
    opened: Open
    tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    drawn: tuple[tuple[int, int, Logprobs | None], ...]
    state_bytes: int
    sender: str
    journal_from: int = 0


class StateTaken(msgspec.Struct, frozen=True, array_like=True, tag="state_taken"):
    """A successor holds this session, or needs it no more."""

    session: int
    sender: str


class Live(msgspec.Struct, frozen=True, array_like=True, tag="live"):
    """The driver's heartbeat: renews the lease; sessions up to `newest` that are not listed have
    ended."""

    epoch: int
    newest: int
    sessions: tuple[int, ...]


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One entry has left the last stage. token: what was drawn for position `stop`, or None.
    logprobs: of that token, where the session asks for them."""

    session: int
    attempt: int
    start: int
    stop: int
    token: int | None
    logprobs: Logprobs | None = None


class Result(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """What the last stage has for the driver."""

    epoch: int
    step_id: int
    sender: str
    outputs: tuple[Output, ...]


class Received(msgspec.Struct, frozen=True, array_like=True, tag="received"):
    """A stage has a step in its queue."""

    epoch: int
    step_id: int
    sender: str


class StageReport(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """A stage has computed (a part of) a step and sent it on.

    queue_s: from arrival to the start of computing. compute_s: inside the engine; 0 where the journal
    answered. held: sessions
    of the part, as (session, tokens held now).
    """

    epoch: int
    step_id: int
    sender: str
    queue_s: float
    compute_s: float
    held: tuple[tuple[int, int], ...]


class NeedOpen(msgspec.Struct, frozen=True, array_like=True, tag="need_open"):
    """A stage met entries of a session that it was never told about."""

    session: int
    sender: str


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """A stage cannot go on with a session; its neighbours in the step are not touched."""

    session: int
    sender: str
    reason: str


class Unanswered(msgspec.Struct, frozen=True, array_like=True, tag="unanswered"):
    """A stage has pulled of `predecessor` again and again, and got no answer to any pull."""

    epoch: int
    sender: str
    predecessor: str


ToWorker = Step | Pull | Refill | PullTaken | Open | Close | Live | Peers | HandOverTo | State
ToDriver = (
    Result
    | Received
    | StageReport
    | NeedOpen
    | Refused
    | Unanswered
    | Pull
    | Closed
    | PeersTaken
    | HandingOver
    | StateTaken
)
Message = (
    Step
    | Pull
    | Refill
    | PullTaken
    | Open
    | Close
    | Live
    | Peers
    | Result
    | Received
    | StageReport
    | NeedOpen
    | Refused
    | Unanswered
    | Closed
    | PeersTaken
    | HandOverTo
    | HandingOver
    | State
    | StateTaken
)


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Asked on the control socket."""

    nonce: int


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answered by a thread that never computes.

    progress: moves while a batch is being computed. computing_step: None when idle.
    protocol: PROTOCOL_VERSION of the worker. journal_bytes: what all journals take now. cut_journals:
    sessions whose journal has only the last rows. journal_cuts, long_pulls: how often a journal had to give
    way, and how often that made a session be computed again here. computed_tokens, compute_s: of all that was
    computed here; pulled_tokens, pull_s: of that which was pulled.
    """

    nonce: int
    protocol: int
    worker: str
    epoch: int
    last_step_received: int
    computing_step: int | None
    progress: int
    sessions: int
    journal_bytes: int = 0
    cut_journals: int = 0
    journal_cuts: int = 0
    long_pulls: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    pulled_tokens: int = 0
    pull_s: float = 0.0


T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_control_decoder: msgspec.msgpack.Decoder[Ping | Pong] = msgspec.msgpack.Decoder(Ping | Pong)
# What msgspec lets through for texts that are not UTF-8 and for arrays nested without end.
_NOT_OURS = (UnicodeDecodeError, RecursionError)


def encode(message: Message | Ping | Pong) -> bytes:
    """Message to one frame."""
    return _encoder.encode(message)


def decode(frame: bytes | memoryview) -> Message:
    """One frame to a message. Raises msgspec.DecodeError for anything else."""
    return decode_by(_decoder, frame)


def decode_control(frame: bytes | memoryview) -> Ping | Pong:
    """One frame from a control socket. Raises msgspec.DecodeError for anything else."""
    return decode_by(_control_decoder, frame)


def decode_by(decoder: msgspec.msgpack.Decoder[T], frame: bytes | memoryview) -> T:
    """One frame from anybody. Raises msgspec.DecodeError, and nothing else, where it is not what `decoder`
    takes."""
    try:
        return decoder.decode(frame)
    except _NOT_OURS as error:
        raise msgspec.DecodeError(str(error)) from error
