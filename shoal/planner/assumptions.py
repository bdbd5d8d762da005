"""What an estimate takes as given beside machines and model. Every figure can be asked for otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.catalogue.loader import Catalogue


@dataclass(frozen=True, slots=True)
class Assumptions:
    """context_tokens: that each stream holds. prompt_tokens: of a new request. streams: at the same
    time. chunk_tokens: of a prefill step. row_value_bytes: of one value between machines (Shoal sends
    float32: 4). max_step_tokens: streams that one decode step may carry. used_share: of the
    hours that machines are on, those with work. notice_s: until a silent machine counts as lost.
    """

    usd_per_kwh: float
    lifetime_s: float
    notice_s: float
    context_tokens: int = 4096
    prompt_tokens: int = 1024
    streams: int = 8
    chunk_tokens: int = 128
    row_value_bytes: int = 4
    max_step_tokens: int = 64
    used_share: float = 1.0

    @property
    def buffer_rows(self) -> int:
        """Rows of one chunk that a stage holds at once: in, out, and two while it computes."""
        return 4 * self.chunk_tokens


def default_assumptions(catalogue: Catalogue) -> Assumptions:
    return Assumptions(
        usd_per_kwh=catalogue.price("electricity"),
        lifetime_s=catalogue.price("hardware-lifetime"),
        notice_s=catalogue.price("notice"),
    )
