"""Which sessions go into the next step.

Pure. A step is one chunk of one prompt, or one token each of sessions that are decoding: such
steps suit every kind of memory (SLICES section 3), and a token never waits inside a step for
somebody's prompt. Disjoint steps follow each other through the stages, so that all work at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.sequence import SessionId
from shoal.pipeline.session import Phase, Session


@dataclass(frozen=True, slots=True)
class InFlight:
    """Steps on their way now."""

    decode_steps: int
    prefill_steps: int


@dataclass(frozen=True, slots=True)
class StepChoice:
    """Sessions for one step; `max_tokens` of each."""

    sessions: tuple[SessionId, ...]
    max_tokens: int


class Scheduler:
    """Chooses steps for a pipeline of `num_stages`.

    chunk_tokens: longest prefill chunk. max_steps: steps of a kind in flight at most; by default
    one a stage, and one more chunk while nobody decodes, so that the first stage never waits for
    the driver. max_batch_tokens: tokens of one decode step.
    """

    def __init__(
        self, *, num_stages: int, chunk_tokens: int, max_batch_tokens: int, max_steps: int | None = None
    ) -> None:
        self._num_stages = num_stages
        self._chunk_tokens = chunk_tokens
        self._max_batch_tokens = max_batch_tokens
        self._max_steps = max_steps
        self._last_prefilled = SessionId(-1)

    def choose(self, sessions: Sequence[Session], in_flight: InFlight) -> StepChoice | None:
        """The next step to send now, or None. Call again until None."""
        return self._choose_decode(sessions, in_flight) or self._choose_prefill(sessions, in_flight)

    def _choose_decode(self, sessions: Sequence[Session], in_flight: InFlight) -> StepChoice | None:
        if in_flight.decode_steps >= (self._max_steps or self._num_stages):
            return None
        decoding = [s for s in sessions if s.phase is Phase.DECODE]
        ready = [s for s in decoding if not s.in_flight]
        if not ready:
            return None
        # An equal share a stage: while one share is in the last stage the others fill the rest.
        share = -(-len(decoding) // self._num_stages)
        chosen = ready[: min(share, self._max_batch_tokens)]
        return StepChoice(tuple(s.session for s in chosen), 1)

    def _choose_prefill(self, sessions: Sequence[Session], in_flight: InFlight) -> StepChoice | None:
        waiting = [s for s in sessions if s.phase is Phase.PREFILL]
        someone_decodes = any(s.phase is Phase.DECODE for s in sessions)
        limit = self._max_steps or (self._num_stages if someone_decodes else self._num_stages + 1)
        if not waiting or in_flight.prefill_steps >= limit:
            return None
        # In turn, so that a short prompt does not wait for the whole of a long one.
        chosen = next((s for s in waiting if s.session > self._last_prefilled), waiting[0])
        self._last_prefilled = chosen.session
        return StepChoice((chosen.session,), self._chunk_tokens)
