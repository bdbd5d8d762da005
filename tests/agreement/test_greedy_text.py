"""Greedy text of a chain of slices is llama-cpp-python's on the undivided file."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from llama_cpp import Llama, llama_cpp

from shoal.engine.interface import Chunk, Draw
from shoal.pipeline.tokenizer import Tokenizer
from tests.support.greedy_runs import GREEDY, chunked
from tests.support.real_models import gemma_path, qwen_path
from tests.support.slice_chain import SliceChain, even_cuts

CELLS = 512
DEFAULT_PARAMS = llama_cpp.llama_model_default_params
CHUNK_TOKENS = 32

PROMPTS = (
    "The tide comes in twice a day because",
    "def read_lines(path):\n",
    "Once upon a time, in a village by the sea,",
    "A recipe for bread: flour, water, salt and",
    "The three largest cities of Japan are",
    "SELECT name, COUNT(*) FROM fish WHERE",
    "Wie spät ist es? Es ist",
    "1, 1, 2, 3, 5, 8,",
    "To whom it may concern: " + "we are writing to you about the boats. " * 8,
    "🐟🐟 means",
)


def llama_text(llama: Llama, prompt: list[int], max_tokens: int) -> list[int]:
    llama.reset()
    answer: list[int] = []
    for token in llama.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
        answer.append(int(token))
        if len(answer) == max_tokens:
            break
    return answer


def sliced_text(chain: SliceChain, prompt: list[int], max_tokens: int) -> list[int]:
    for engine in chain.engines:
        engine.clear(0)
    drawn: int | None = None
    for start, tokens in chunked(prompt, CHUNK_TOKENS):
        end = start + len(tokens)
        [drawn] = chain.compute([Chunk(0, start, tokens, Draw(GREEDY, end, ()))]).drawn
    answer: list[int] = []
    while True:
        assert drawn is not None
        answer.append(drawn)
        if len(answer) == max_tokens:
            return answer
        position = len(prompt) + len(answer) - 1
        [drawn] = chain.compute([Chunk(0, position, [drawn], Draw(GREEDY, position + 1, ()))]).drawn


def as_in_the_file() -> ctypes.Structure:
    """As slices of weights that row kernels serve are loaded."""
    params: ctypes.Structure = DEFAULT_PARAMS()
    params.use_extra_bufts = False
    return params


def assert_same_text(path: Path, folder: Path, num_layers: int, max_tokens: int) -> None:
    tokenizer = Tokenizer(path)
    llama = Llama(
        str(path),
        n_ctx=CELLS,
        n_batch=CHUNK_TOKENS,
        n_ubatch=CHUNK_TOKENS,
        n_threads=1,
        n_threads_batch=1,
        flash_attn=True,  # what llama.cpp chooses on its own on a CPU
        swa_full=True,
        verbose=False,
    )
    try:
        with SliceChain(
            path, even_cuts(num_layers, 3), folder, cells=CELLS, max_batch_tokens=CHUNK_TOKENS
        ) as chain:
            for prompt in PROMPTS:
                tokens = tokenizer.encode(prompt, add_special=True, parse_special=False)
                assert tokens == llama.tokenize(prompt.encode(), add_bos=True, special=False)
                sliced = sliced_text(chain, tokens, max_tokens)
                assert sliced == llama_text(llama, tokens, max_tokens), prompt
    finally:
        llama.close()
        tokenizer.close()


@pytest.mark.timeout(600)  # may fetch the model first
def test_gemma_in_slices_writes_what_llama_cpp_python_writes(tmp_path: Path) -> None:
    assert_same_text(gemma_path(), tmp_path, num_layers=18, max_tokens=16)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_qwen_in_slices_writes_what_llama_cpp_python_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Repacked weights round otherwise, and `Llama` has no setting for them.
    monkeypatch.setattr(llama_cpp, "llama_model_default_params", as_in_the_file)
    assert_same_text(qwen_path(), tmp_path, num_layers=28, max_tokens=24)
