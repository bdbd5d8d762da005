"""How many sessions a journal of bounded bytes has room for. Pure.

The driver admits by it, and a worker cuts journals by it (worker/journal_budget.py).
"""

from __future__ import annotations

LEAST_CHUNKS = 4  # that a cut journal has room for


def least_session_bytes(row_bytes: int, chunk_tokens: int) -> int:
    """What one session's journal takes when it is cut as far as it can be. chunk_tokens: longest chunk."""
    return LEAST_CHUNKS * chunk_tokens * row_bytes


def max_sessions(limit_bytes: int, row_bytes: int, chunk_tokens: int) -> int:
    """How many sessions fit, each cut as far as it can be; 0 where none does."""
    return limit_bytes // least_session_bytes(row_bytes, chunk_tokens)
