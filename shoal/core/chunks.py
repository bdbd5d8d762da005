"""Cutting a run of tokens into chunks."""

from __future__ import annotations


def even_chunks(num_tokens: int, longest: int) -> tuple[int, ...]:
    """Lengths of chunks of `longest` tokens, the last one shorter, that make up `num_tokens`."""
    full, rest = divmod(num_tokens, longest)
    return (longest,) * full + ((rest,) if rest else ())
