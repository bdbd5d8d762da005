"""Characters that come in pieces, through a whole pipeline (R05, and R11 on byte tokens).

The last engine is made to say given bytes, one a token, so that every character is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import openai
import pytest

from shoal.engine.interface import Chunk, Computed, Rows
from shoal.worker.slice_worker import SliceWorker
from tests.support.served_pipeline import DEADLINE_S, MODEL, Served, served_digests

END = 256
SAYINGS = ["🐟 漢字 é", "👩‍👩‍👧 family", "日本語のテキスト", "🇯🇵🏴‍☠️ ½ ✓"]


class ByteVocabulary:
    """Tokens are bytes; one more ends an answer."""

    eog_tokens = frozenset({END})

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        if token == END:
            return b"<end>" if special else b""
        return bytes([token % 256])


def dictate(worker: SliceWorker, sayings: Sequence[str]) -> None:
    """Session with seed n says the n-th text, whatever the engine drew. Prompts have two tokens."""
    compute = worker._engine.compute

    def dictated(chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        computed = compute(chunks, rows)
        drawn = [
            None if chunk.draw is None else say(chunk.draw.params.seed, chunk.draw.position - 2)
            for chunk in chunks
        ]
        return replace(computed, drawn=tuple(drawn))

    def say(saying: int, index: int) -> int:
        said = sayings[saying].encode()
        return said[index] if index < len(said) else END

    worker._engine.compute = dictated  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with served_digests(vocabulary=ByteVocabulary()) as service:
        dictate(service.workers[-1], SAYINGS)
        yield service


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S
    ) as official:
        yield official


def ask(client: openai.OpenAI, saying: int, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(model=MODEL, messages=messages, seed=saying, **fields)


def deltas_of(client: openai.OpenAI, saying: int, **fields: Any) -> list[str]:
    chunks = ask(client, saying, stream=True, **fields)
    return [chunk.choices[0].delta.content or "" for chunk in chunks]


def test_four_at_once_get_whole_characters_only(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(4) as pool:
        streams = list(pool.map(lambda number: deltas_of(client, number), range(4)))
        whole = list(pool.map(lambda number: ask(client, number), range(4)))
    for saying, deltas, answer in zip(SAYINGS, streams, whole, strict=True):
        assert not any("\ufffd" in delta for delta in deltas)
        assert "".join(deltas) == saying == answer.choices[0].message.content


@pytest.mark.parametrize("saying", range(4))
def test_half_a_character_at_the_limit_is_no_text(client: openai.OpenAI, saying: int) -> None:
    for limit in range(1, 8):
        text = SAYINGS[saying].encode()[:limit].decode(errors="ignore")
        assert "".join(deltas_of(client, saying, max_tokens=limit)) == text
        assert ask(client, saying, max_tokens=limit).choices[0].message.content == text


@pytest.mark.parametrize("saying", range(4))
def test_a_stop_character_of_many_bytes_leaves_no_piece_of_it(client: openai.OpenAI, saying: int) -> None:
    stop = SAYINGS[saying][3]
    text = SAYINGS[saying][: SAYINGS[saying].index(stop)]
    assert "".join(deltas_of(client, saying, stop=stop)) == text
    assert ask(client, saying, stop=stop).choices[0].message.content == text


@pytest.mark.parametrize("saying", range(4))
def test_logprobs_of_byte_tokens_join_to_the_text(client: openai.OpenAI, saying: int) -> None:
    content = ask(client, saying, logprobs=True, top_logprobs=20).choices[0].logprobs.content
    assert bytes(byte for token in content for byte in token.bytes).decode() == SAYINGS[saying]
    assert not any("\ufffd" in token.token for token in content)
    text, told = "", b""
    for chunk in ask(client, saying, logprobs=True, stream=True):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        told += bytes(
            byte for token in (choice.logprobs.content if choice.logprobs else ()) for byte in token.bytes
        )
        assert text.encode() == told
    assert text == SAYINGS[saying]


def test_bytes_at_the_limit_that_are_no_text_are_told_all_the_same(client: openai.OpenAI) -> None:
    choice = ask(client, 0, logprobs=True, max_tokens=3).choices[0]
    assert choice.message.content == ""
    assert [token.token for token in choice.logprobs.content] == ["\\xf0", "\\x9f", "\\x90"]
    assert [token.bytes for token in choice.logprobs.content] == [[0xF0], [0x9F], [0x90]]
    *_, last_text, end = ask(client, 0, logprobs=True, max_tokens=3, stream=True)
    assert (last_text.choices[0].delta.content, len(last_text.choices[0].logprobs.content)) == ("", 3)
    assert end.choices[0].finish_reason == "length"
