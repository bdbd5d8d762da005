"""One request on its way through the pipeline, as the driver sees it.

Pure. It knows which tokens there are, which have been sent into the stages and which have come
out, and turns drawn tokens into text. When to send what is the scheduler's to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from shoal.core.sequence import FinishReason, GenerateRequest, Logprobs, SessionId, TextDelta, TokenLogprobs
from shoal.pipeline.held_logprobs import HeldLogprobs
from shoal.pipeline.text_stream import TextStream
from shoal.pipeline.vocabulary import Vocabulary, name_logprobs
from shoal.wire.messages import Entry, Open


class Phase(Enum):
    """Where a session stands. WAITING: not admitted. PREFILL: prompt entries remain to be sent.
    DECODE: one entry a token."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class Session:
    """slot: given by admission. tokens: prompt and answer. sent: positions that have been sent
    into the pipeline. lengths: of the entries they were sent in, kept so that a replay has the
    same shapes. in_flight: entries without a result, by start. was_alone: no other session has
    been on the pipeline at the same time."""

    session: SessionId
    request: GenerateRequest
    phase: Phase = Phase.WAITING
    slot: int | None = None
    tokens: list[int] = field(default_factory=list)
    sent: int = 0
    attempt: int = 0
    lengths: list[int] = field(default_factory=list)
    in_flight: dict[int, Entry] = field(default_factory=dict)
    opened: bool = False
    was_alone: bool = True
    text: TextStream = field(default_factory=TextStream)
    held_logprobs: HeldLogprobs = field(default_factory=HeldLogprobs)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_tokens)
        self.text = TextStream(self.request.stop)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_tokens)

    @property
    def num_unsent(self) -> int:
        return len(self.tokens) - self.sent

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def reserved_tokens(self) -> int:
        return self.prompt_length + self.request.max_tokens

    @property
    def assigned_slot(self) -> int:
        """The slot of a session that has been admitted."""
        assert self.slot is not None, f"session {self.session} is not admitted"
        return self.slot

    def open_message(self, *, exact_replay: bool) -> Open:
        return Open(
            self.session,
            self.assigned_slot,
            self.prompt_length,
            self.reserved_tokens,
            self.request.sampling,
            exact_replay and self.was_alone,
        )

    def next_entry(self, max_tokens: int) -> Entry:
        """Take the next unsent tokens, at most `max_tokens`; the last unsent one is sampled behind."""
        start, stop = self.sent, min(self.sent + max_tokens, len(self.tokens))
        entry = Entry(
            self.session, self.attempt, start, tuple(self.tokens[start:stop]), stop == len(self.tokens)
        )
        self.sent = stop
        self.lengths.append(stop - start)
        self.in_flight[start] = entry
        if stop == len(self.tokens):
            self.phase = Phase.DECODE
        return entry

    def chunks_from(self, start: int, max_tokens: int) -> tuple[int, ...]:
        """Lengths of the entries sent from `start` on, at least one, then up to `max_tokens`."""
        lengths: list[int] = []
        position = 0
        for length in self.lengths:
            position += length
            if position <= start:
                continue
            if lengths and position - start > max_tokens:
                break
            lengths.append(position - start - sum(lengths))
        return tuple(lengths)

    def accept(
        self, token: int, vocabulary: Vocabulary, logprobs: Logprobs | None = None
    ) -> tuple[TextDelta | None, FinishReason | None]:
        """Take a drawn token in. Returns what to show now and, at the end, why it ended."""
        self.tokens.append(token)
        if token in vocabulary.eog_tokens and not self.request.ignore_eog:
            return self._delta(self.text.flush(), is_end=True), FinishReason.STOP
        begin = self.text.num_decoded
        shown = self.text.feed(vocabulary.token_bytes(token))
        if logprobs is not None:
            self.held_logprobs.add(
                name_logprobs(token, logprobs, begin, vocabulary),
                # The character that a token ends inside of is the one after those decoded.
                complete_at=self.text.num_decoded + self.text.is_inside_character,
            )
        if self.text.stopped:
            return self._delta(shown, is_end=True), FinishReason.STOP
        if self.num_generated >= self.request.max_tokens:
            return self._delta(shown + self.text.flush(), is_end=True), FinishReason.LENGTH
        return self._delta(shown, is_end=False), None

    def _delta(self, text: str, *, is_end: bool) -> TextDelta | None:
        if self.request.sampling.top_logprobs is None:
            return TextDelta(text) if text else None
        logprobs: tuple[TokenLogprobs, ...] = ()
        if is_end:
            logprobs = self.held_logprobs.take_rest(before=self.text.num_shown if self.text.stopped else None)
        elif text:
            logprobs = self.held_logprobs.take(self.text.num_shown)
        return TextDelta(text, logprobs) if text or logprobs else None
