"""What all journals of one worker may take together, and what gives way when that is full. Pure.

The oldest session gives way: its journal is cut to its last rows. These answer entries that are sent
again; but should a neighbour be lost, the session is pulled from farther up than by a whole journal,
at worst from the driver's token ids: every stage above computes it again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shoal.worker.residency import Residency

WINDOW_TOKENS = 1024  # of one pull; 6 MiB of rows at a width of 1,536


@dataclass(frozen=True, slots=True)
class JournalBudget:
    """limit_bytes: of all journals. row_bytes: of one row, 0 on the last stage. chunk_tokens: longest
    chunk. window_tokens: what is pulled at once, and how far a stage may be ahead of a successor that
    pulls. kept_tokens: of a cut journal: as far back as that successor may still ask."""

    limit_bytes: int
    row_bytes: int
    chunk_tokens: int
    window_tokens: int
    kept_tokens: int

    @classmethod
    def of(cls, limit_bytes: int, row_bytes: int, chunk_tokens: int, num_sessions: int) -> JournalBudget:
        """Windows as long as all sessions' cut journals allow together (core/journal_room.py)."""
        window = WINDOW_TOKENS
        if row_bytes:
            rows_each = limit_bytes // (row_bytes * max(1, num_sessions))
            window = max(chunk_tokens, min(WINDOW_TOKENS, (rows_each - 2 * chunk_tokens) // 2))
        return cls(limit_bytes, row_bytes, chunk_tokens, window, 2 * window + chunk_tokens)

    def make_room(self, growing: Residency, count: int, sessions: Collection[Residency]) -> int:
        """Cut journals, oldest session first, until `count` more rows of `growing` fit; how many were."""
        excess = growing.journal.growth_bytes(count)
        if not excess or not self.row_bytes:
            return 0
        excess += sum(residency.journal.allocated_bytes for residency in sessions) - self.limit_bytes
        num_cut = 0
        if excess > 0:
            for residency in sorted(sessions, key=lambda r: r.session):
                freed = self._cut(residency, count if residency is growing else 0)
                num_cut += freed > 0
                excess -= freed
                if excess <= 0:
                    break
        return num_cut

    def _cut(self, residency: Residency, count: int) -> int:
        """Cut one journal, where that frees something. count: rows that are about to be appended."""
        journal = residency.journal
        least_bytes = (self.kept_tokens + self.chunk_tokens) * self.row_bytes
        would_have = journal.allocated_bytes + journal.growth_bytes(count)
        if journal.is_cut or would_have <= least_bytes:
            return 0
        journal.cut(self.kept_tokens, self.chunk_tokens)
        return would_have - journal.allocated_bytes - journal.growth_bytes(count)
