"""One worker's policy on a digest engine, driven by hand: say what comes, read what it sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from shoal.core.errors import EngineError
from shoal.core.placement import DRIVER, WorkerId
from shoal.core.sequence import SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.engine.interface import Chunk, Computed, Draw, Rows
from shoal.wire.messages import Entry, Open, Peers, Received, Refill, Step, ToWorker
from shoal.worker.acknowledgements import ACKNOWLEDGE_AFTER_S
from shoal.worker.job import Job, StateJob, run_job, run_state_job
from shoal.worker.outbox import Send
from shoal.worker.protocol import WorkerCore

N_VOCAB = 997
NUM_LAYERS = 6
BEFORE, ME, AFTER = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")
LAYERS = {"first": LayerRange(0, 2), "middle": LayerRange(2, 4), "last": LayerRange(4, 6)}
RETRY_S = 1.0
SEED = 5
SAMPLING = SamplingParams(seed=SEED)

M = TypeVar("M")


def opened(
    session: int,
    *,
    slot: int | None = None,
    prompt: int = 8,
    reserved: int = 64,
    sampling: SamplingParams = SAMPLING,
) -> Open:
    """What the driver says of a session. slot: by default one of its own for sessions 1 to 4."""
    return Open(session, (session - 1) % 4 if slot is None else slot, prompt, reserved, sampling)


def tokens_of(session: int, start: int, stop: int) -> tuple[int, ...]:
    """The tokens of a session of these tests, at any positions."""
    return tuple((session * 100 + position) % N_VOCAB for position in range(start, stop))


def entry(session: int, start: int, stop: int, *, attempt: int = 0, sample: bool = False) -> Entry:
    return Entry(session, attempt, start, tokens_of(session, start, stop), sample)


def rows_of(session: int, start: int, stop: int) -> Rows:
    """What the stage before sends for these positions."""
    return np.array([[session, position, 0, 1] for position in range(start, stop)], np.float32)


def expected_rows(session: int, start: int, stop: int, place: str = "middle") -> Rows:
    """What an unbroken stage has for these positions."""
    engine = DigestEngine(LAYERS[place], NUM_LAYERS, n_vocab=N_VOCAB)
    rows = None if place == "first" else rows_of(session, 0, stop)
    computed = engine.compute([Chunk(0, 0, tokens_of(session, 0, stop), None, SEED)], rows)
    assert computed.rows is not None
    return computed.rows[start:]


def expected_draw(session: int, stop: int) -> int:
    """What an unbroken last stage draws behind these tokens."""
    engine = DigestEngine(LAYERS["last"], NUM_LAYERS, n_vocab=N_VOCAB)
    draw = Draw(SAMPLING, stop, ())
    (token,) = engine.compute(
        [Chunk(0, 0, tokens_of(session, 0, stop), draw, SEED)], rows_of(session, 0, stop)
    ).drawn
    assert token is not None
    return token


class RecordingEngine(DigestEngine):
    """A digest engine that keeps what it was given and gave."""

    calls: list[tuple[tuple[Chunk, ...], Rows | None, Computed | None]]

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        self.calls.append((tuple(chunks), rows, None))
        computed = super().compute(chunks, rows)
        self.calls[-1] = (tuple(chunks), rows, computed)
        return computed


class OneWorker:
    """place: "first", "middle" or "last" of three stages. The clock stands in `now_s`."""

    def __init__(
        self,
        place: str = "middle",
        *,
        max_sequences: int = 4,
        max_batch_tokens: int = 16,
        can_trim: bool = True,
        mixes_chunks: bool = True,
        fails: Callable[[Sequence[Chunk]], bool] | None = None,
        journal_bytes: int = 1 << 30,
    ) -> None:
        self.engine = RecordingEngine(
            LAYERS[place],
            NUM_LAYERS,
            n_vocab=N_VOCAB,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            can_trim=can_trim,
            mixes_chunks=mixes_chunks,
            fails=fails,
        )
        self.engine.calls = []
        self.place = place
        self.sender = DRIVER if place == "first" else BEFORE
        self.route: tuple[str, ...] = () if place == "last" else (AFTER, DRIVER)
        if place == "last":
            self.route = (DRIVER,)
        self.core = WorkerCore(
            ME,
            is_first=place == "first",
            is_last=place == "last",
            limits=self.engine.limits,
            predecessor=self.sender,
            retry_after_s=RETRY_S,
            journal_bytes=journal_bytes,
        )
        self.now_s = 0.0
        self.sent: list[Send] = []
        self.take_peers(1)
        self.sent.clear()

    def take_peers(
        self,
        epoch: int,
        *,
        predecessor: str | None = None,
        feeds: Sequence[str] = (),
        awaits_states: bool = False,
    ) -> None:
        """The placement of `epoch` comes in; by default the neighbours stay who they are."""
        self.receive(Peers(epoch, (), predecessor or self.sender, tuple(feeds), awaits_states))

    def receive(self, message: ToWorker, rows: Rows | None = None) -> None:
        self.core.receive(message, rows, self.now_s)
        self.sent += self.core.take_sends()

    def step(
        self,
        *entries: Entry,
        opens: Sequence[Open] = (),
        rows: Rows | None = None,
        step_id: int = 1,
        epoch: int = 1,
        sender: str | None = None,
    ) -> None:
        """A step of these entries comes in, with the rows that belong to them; nothing is computed yet."""
        if rows is None and self.place != "first":
            rows = np.concatenate([rows_of(e.session, e.start, e.stop) for e in entries])
        message = Step(epoch, step_id, sender or self.sender, self.route, entries, tuple(opens))
        self.receive(message, rows)

    def refill(self, session: int, start: int, *lengths: int, attempt: int = 0) -> None:
        """What was pulled comes in."""
        stop = start + sum(lengths)
        rows = None if self.place == "first" else rows_of(session, start, stop)
        tokens = tokens_of(session, start, stop)
        self.receive(Refill(1, session, attempt, start, tokens, lengths, self.sender), rows)

    def next_job(self) -> Job | StateJob | None:
        job = self.core.next_job(self.now_s)
        self.sent += self.core.take_sends()
        return job

    def run_job(self, job: Job) -> Computed | EngineError:
        return run_job(self.engine, job)

    def finish(self, job: Job, outcome: Computed | EngineError) -> None:
        self.core.finish(job, outcome, 0.25, self.now_s)
        self.sent += self.core.take_sends()

    def work(self, max_jobs: int = 200) -> int:
        """Compute until there is nothing to compute; returns how many batches that took."""
        num_batches = 0
        for _ in range(max_jobs):
            job = self.next_job()
            if job is None:
                return num_batches
            if isinstance(job, StateJob):
                self.core.finish_state(job, run_state_job(self.engine, job), self.now_s)
                self.sent += self.core.take_sends()
                continue
            num_batches += bool(job.chunks)
            self.finish(job, self.run_job(job))
        raise AssertionError(f"still computing after {max_jobs} jobs")

    def tick_at(self, now_s: float) -> None:
        self.now_s = now_s
        self.core.tick(now_s)
        self.sent += self.core.take_sends()

    def acknowledge(self) -> list[Received]:
        """Let the worker say which steps have come; what it sent before is forgotten."""
        self.take(Received)
        self.tick_at(self.now_s + ACKNOWLEDGE_AFTER_S)
        return self.take(Received)

    def take(self, kind: type[M]) -> list[M]:
        """Messages of one kind that were sent since the last look; all others are forgotten."""
        return [send.message for send in self.take_sends(kind)]  # type: ignore[misc]

    def take_sends(self, kind: type[M] | tuple[type[M], ...]) -> list[Send]:
        """As `take`, with addressees and rows."""
        sent, self.sent = self.sent, []
        return [send for send in sent if isinstance(send.message, kind)]

    def hold(self, session: int, stop: int) -> None:
        """Bring a session to where it holds `[0, stop)`, and forget what was sent for that."""
        held = 0
        while held < stop:
            end = min(held + 8, stop)
            opens = (opened(session),) if held == 0 else ()
            self.step(entry(session, held, end), opens=opens)
            held = end
        self.work()
        self.sent.clear()
        self.engine.calls.clear()


def ends_of(entries: Sequence[Entry]) -> list[tuple[int, int, int]]:
    return [(e.session, e.start, e.stop) for e in entries]
