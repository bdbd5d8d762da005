"""Between entries and the engine's batch: rows in, chunks, rows out. Pure, and copies no rows on
the common path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.engine.interface import Chunk, Computed, Draw, Rows
from shoal.wire.messages import Entry, Open, Output
from shoal.worker.job import Planned
from shoal.worker.residency import Part, Residency, Task


def split_rows(entries: Sequence[Entry], rows: Rows | None, row_width: int | None) -> list[Part] | None:
    """Entries with their rows. row_width: None on the first stage, which takes tokens and no rows.

    None where the rows do not fit the entries.
    """
    if row_width is None:
        return [Part(entry, None) for entry in entries] if rows is None else None
    total = sum(len(entry.tokens) for entry in entries)
    if rows is None or rows.shape != (total, row_width):
        return None
    parts, offset = [], 0
    for entry in entries:
        parts.append(Part(entry, rows[offset : offset + len(entry.tokens)]))
        offset += len(entry.tokens)
    return parts


def chunk_of(residency: Residency, entry: Entry, *, may_draw: bool) -> Chunk:
    """The part of an entry that is not held yet, for the engine."""
    assert residency.seq is not None
    assert residency.opened is not None
    opened = residency.opened
    tokens = entry.tokens[residency.held - entry.start :]
    draw = None
    if entry.sample and may_draw:
        draw = Draw(opened.sampling, entry.stop, _generated(residency, opened, tokens))
    num_prompt = max(0, opened.prompt_tokens - residency.held)
    return Chunk(residency.seq, residency.held, tokens, draw, opened.sampling.seed, num_prompt)


def input_rows(task: Task, planned: Sequence[Planned]) -> Rows:
    """Input of the chunks, in order: the task's own array, uncopied, when all of it is computed."""
    pieces: list[Rows] = []
    for p in planned:
        if p.chunk is not None:
            assert p.part.rows is not None
            pieces.append(p.part.rows[p.residency.held - p.part.entry.start :])
    if len(pieces) == 1:
        return pieces[0]
    if task.rows is not None and sum(len(piece) for piece in pieces) == len(task.rows):
        return task.rows
    return np.concatenate(pieces)


def output_rows(planned: Sequence[Planned], outcome: Computed | None) -> Rows:
    """Rows of the entries, in order: the engine's own array, uncopied, when it is just that."""
    total = sum(len(p.part.entry.tokens) for p in planned)
    computed = None if outcome is None else outcome.rows
    if computed is not None and len(computed) == total and all(p.chunk is not None for p in planned):
        return computed
    return np.concatenate([p.residency.journal.read(p.part.entry.start, p.part.entry.stop) for p in planned])


def outputs(planned: Sequence[Planned]) -> tuple[Output, ...]:
    """What the last stage tells the driver of these entries."""
    return tuple(_output(p.part.entry, p.residency) for p in planned)


def _output(entry: Entry, residency: Residency) -> Output:
    drawn = residency.drawn.get(entry.stop) if entry.sample else None
    token, logprobs = (None, None) if drawn is None else drawn
    return Output(entry.session, entry.attempt, entry.start, entry.stop, token, logprobs)


def _generated(residency: Residency, opened: Open, tokens: Sequence[int]) -> Sequence[int]:
    """The answer before the token to be drawn; copied only for draws that depend on it."""
    if not opened.sampling.has_penalties:
        return ()
    return [*residency.tokens, *tokens][opened.prompt_tokens :]
