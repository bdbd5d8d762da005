"""Which sessions go into the next step.

Pure. A step is one chunk of one prompt, or one token each of sessions that are decoding: such
steps suit every kind of memory (SLICES section 3), and a token never waits inside a step for
somebody's prompt. Disjoint steps follow each other through the stages, so that all work at once.

In invariant mode sessions of one step sit on consecutive slots, in ascending order: there each slot
has a cache of its own, and llama.cpp computes consecutive ones as one batch but starts another,
reading all weights again, wherever a slot is missing. Eight sessions on scattered slots took 70 ms a
step where consecutive ones took 42. And they are fewer than TILED_ROWS, which the engine would cut
in two as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.invariant_mode import TILED_ROWS
from shoal.core.sequence import SessionId
from shoal.pipeline.session import Phase, Session

_CHUNKS_A_STAGE = 2
_ROUNDED_TO = 8  # rows that the kernels for matrix products take at a time


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

    chunk_tokens: longest prefill chunk. least_chunk_tokens: see `chunk_length`. max_steps: steps
    of a kind in flight at most; by default one a stage, and one more chunk while nobody decodes, so
    that the first stage never waits for the driver. max_batch_tokens: tokens of one decode step.
    consecutive_slots: invariant mode.
    """

    def __init__(
        self,
        *,
        num_stages: int,
        chunk_tokens: int,
        least_chunk_tokens: int = 1,
        max_batch_tokens: int,
        max_steps: int | None = None,
        consecutive_slots: bool = False,
    ) -> None:
        self._num_stages = num_stages
        self._chunk_tokens = chunk_tokens
        self._least_chunk_tokens = min(least_chunk_tokens, chunk_tokens)
        self._max_batch_tokens = max_batch_tokens
        self._max_steps = max_steps
        self._consecutive_slots = consecutive_slots
        self._is_turn_of_shortest = False
        self._last_decoded = SessionId(-1)
        self._next_slot = 0

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
        num_shares = self._num_stages
        if self._consecutive_slots:
            num_shares = max(num_shares, -(-len(decoding) // (TILED_ROWS - 1)))
        share = min(-(-len(decoding) // num_shares), self._max_batch_tokens)
        # In turn, like prompts: where the limits leave some out, it must not be the same ones for ever.
        ready.sort(key=lambda s: (s.session <= self._last_decoded, s.session))
        chosen = self._neighbours(ready, share) if self._consecutive_slots else ready[:share]
        self._last_decoded = chosen[-1].session
        return StepChoice(tuple(s.session for s in chosen), 1)

    def _neighbours(self, ready: Sequence[Session], most: int) -> list[Session]:
        """Sessions on consecutive slots, `most` at most, in ascending order: of those that are
        ready, from the first slot behind the last step's, so that every slot has its turn."""
        by_slot = {session.assigned_slot: session for session in ready}
        start = min((slot for slot in by_slot if slot >= self._next_slot), default=min(by_slot))
        stop = start + 1
        while stop in by_slot and stop - start < most:
            stop += 1
        self._next_slot = stop
        return [by_slot[slot] for slot in range(start, stop)]

    def _choose_prefill(self, sessions: Sequence[Session], in_flight: InFlight) -> StepChoice | None:
        waiting = [s for s in sessions if s.phase is Phase.PREFILL]
        someone_decodes = any(s.phase is Phase.DECODE for s in sessions)
        limit = self._max_steps or (self._num_stages if someone_decodes else self._num_stages + 1)
        if not waiting or in_flight.prefill_steps >= limit:
            return None
        chosen = self._next_prompt(waiting)
        return StepChoice((chosen.session,), self.chunk_length(chosen.prompt_length))

    def _next_prompt(self, waiting: Sequence[Session]) -> Session:
        """Every other time the one with the least left, which would else wait for all before it; between,
        the one that came first, so that a long one keeps half of its speed however many short ones come."""
        self._is_turn_of_shortest = not self._is_turn_of_shortest
        if self._is_turn_of_shortest:
            return min(waiting, key=lambda s: s.num_unsent)
        return waiting[0]

    def chunk_length(self, num_tokens: int) -> int:
        """Even chunks, since a short last one would leave stages idle; of a short prompt, enough of them to
        keep all stages busy for most of its time (two a stage), down to `least_chunk_tokens`."""
        num_chunks = -(-num_tokens // self._chunk_tokens)
        if self._num_stages > 1:
            wanted = min(_CHUNKS_A_STAGE * self._num_stages, num_tokens // self._least_chunk_tokens)
            num_chunks = max(num_chunks, wanted)
        even = -(-num_tokens // num_chunks)
        return min(self._chunk_tokens, -(-even // _ROUNDED_TO) * _ROUNDED_TO)
