"""The whole model in one process, by llama-cpp-python's low-level API: the yardstick.

Reads one command a line from stdin and answers with a line of JSON, so that it can be loaded once
and measured in turn with others: `decode THREADS STREAMS TOKENS`, `prefill THREADS TOKENS`.

Greedy, no text, no HTTP: nothing but llama_decode and an argmax a token.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time

import numpy as np
from llama_cpp import llama_cpp

MAX_STREAMS = 8
CELLS = 8192


class Undivided:
    """chunk_tokens: prompts are computed in chunks of this many, as the divided model's are."""

    def __init__(self, path: str, chunk_tokens: int, *, repack: bool) -> None:
        self._chunk_tokens = chunk_tokens
        self._generator = random.Random(1)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model_params.use_extra_bufts = repack
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CELLS, chunk_tokens, chunk_tokens
        params.n_seq_max, params.kv_unified, params.no_perf = MAX_STREAMS, True, True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(chunk_tokens, 0, 1)

    def decode(self, threads: int, num_streams: int, num_tokens: int) -> float:
        """Tokens a second over all streams, each one token a call, all in one batch."""
        self._start_over(threads)
        last = []
        for stream in range(num_streams):
            prompt = [self._generator.randrange(300, 5000) for _ in range(16)]
            self._compute([(stream, at, token) for at, token in enumerate(prompt)])
            last.append(self._greedy(len(prompt) - 1))
        began_s = time.perf_counter()
        for at in range(16, 16 + num_tokens):
            self._compute([(stream, at, token) for stream, token in enumerate(last)], outputs_all=True)
            last = [self._greedy(row) for row in range(num_streams)]
        return num_streams * num_tokens / (time.perf_counter() - began_s)

    def prefill(self, threads: int, num_tokens: int) -> float:
        """Seconds from a prompt to the first token behind it."""
        self._start_over(threads)
        prompt = [self._generator.randrange(300, 5000) for _ in range(num_tokens)]
        began_s = time.perf_counter()
        for start in range(0, num_tokens, self._chunk_tokens):
            chunk = prompt[start : start + self._chunk_tokens]
            self._compute([(0, start + at, token) for at, token in enumerate(chunk)])
        self._greedy(len(chunk) - 1)
        return time.perf_counter() - began_s

    def _start_over(self, threads: int) -> None:
        llama_cpp.llama_set_n_threads(self._context, threads, threads)
        llama_cpp.llama_memory_clear(self._memory, True)

    def _compute(self, rows: list[tuple[int, int, int]], *, outputs_all: bool = False) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (stream, position, token) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, stream
            batch.logits[row] = outputs_all or row == len(rows) - 1
        code = llama_cpp.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code}")

    def _greedy(self, row: int) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        values = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self._n_vocab)).contents
        return int(np.frombuffer(memoryview(values), np.float32).argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--chunk-tokens", type=int, default=128)
    parser.add_argument("--no-repack", action="store_true")
    options = parser.parse_args()
    undivided = Undivided(options.model, options.chunk_tokens, repack=not options.no_repack)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        result = getattr(undivided, name)(*map(int, numbers))
        print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()
