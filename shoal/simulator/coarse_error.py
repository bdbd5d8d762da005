"""How far the coarse mode may be from the fine one: shares of the fine mode's figure. tests hold it to them,
docs/SIMULATE.md states them, hypotheses judged by a coarse run count with them."""

from __future__ import annotations

from typing import Final

THROUGHPUT_GAP: Final = 0.15
TOKEN_GAP: Final = 0.20
FIRST_TOKEN_GAP: Final = 0.25  # median below saturation; mean and median above it, with the same arrivals
STALL_GAP: Final = 0.50
RARE_FACTOR: Final = 2.0  # on what is lost, refused or down
