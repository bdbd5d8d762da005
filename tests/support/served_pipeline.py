"""A whole service in this process: HTTP in front, a driver, and workers over real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.core.config import DriverConfig, EngineConfig
from shoal.core.sequence import FinishReason, GenerateRequest
from shoal.core.specs import LayerRange
from shoal.core.status import ClusterStatus
from shoal.gateway.app import create_app
from shoal.gateway.event_stream import KEEP_ALIVE_S
from shoal.gateway.service import ChatMessages, ModelService
from shoal.model.slicing import cut_embedding, cut_slice
from shoal.pipeline.chat_template import ChatTemplate
from shoal.pipeline.driver import Driver
from shoal.pipeline.tokenizer import Tokenizer
from shoal.pipeline.vocabulary import Vocabulary
from shoal.worker.slice_worker import SliceWorker
from tests.support.digest_reference import NumberVocabulary, digest_answer
from tests.support.gateway_thread import gateway_thread
from tests.support.local_pipeline import local_pipeline
from tests.support.slice_chain import even_cuts

MODEL = "small-model"
NUM_LAYERS = 6
N_VOCAB = 997
DEADLINE_S = 10.0


@dataclass(frozen=True)
class Served:
    """The parts of a running service that a test looks at."""

    url: str
    port: int
    driver: Driver
    workers: list[SliceWorker]

    def is_empty(self) -> bool:
        """Whether no session, cell or step is left anywhere."""
        figures = self.driver.statistics()
        left = (
            figures.sessions_active,
            figures.sessions_waiting,
            figures.cells_reserved,
            figures.steps_in_flight,
        )
        return not any(left) and all(worker._core.num_sessions == 0 for worker in self.workers)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises AssertionError past a deadline."""
        give_up_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < give_up_s, f"never came true; now {self.driver.statistics()}"
            time.sleep(0.002)

    def wait_until_empty(self) -> None:
        self.wait_until(self.is_empty)


class ReadyView:
    """A cluster about which nothing is asked."""

    def is_ready(self) -> bool:
        return True

    def status(self) -> ClusterStatus:
        raise AssertionError("not part of these tests")


# ---------------------------------------------------------------- digests

DIGESTS = NumberVocabulary(frozenset({7}))


def digest_tokens(text: str) -> list[int]:
    """One token a character."""
    return [ord(character) % N_VOCAB for character in text]


def digest_chat_tokens(messages: ChatMessages) -> list[int]:
    return digest_tokens("".join(message["content"] for message in messages))


@contextmanager
def served_digests(
    *,
    num_stages: int = 3,
    n_ctx: int = 2000,
    cells: int = 16_000,
    max_sequences: int = 16,
    max_waiting: int = 64,
    keep_alive_s: float = KEEP_ALIVE_S,
    vocabulary: Vocabulary = DIGESTS,
) -> Iterator[Served]:
    """A service over digest engines: text is numbers."""
    engine = EngineConfig(
        "digest", None, None, n_ctx=n_ctx, cells=cells, max_sequences=max_sequences, n_vocab=N_VOCAB
    )
    engines = [(layers, engine) for layers in even_cuts(NUM_LAYERS, num_stages)]
    config = DriverConfig(max_waiting=max_waiting)
    with local_pipeline(engines, vocabulary, n_ctx=n_ctx, config=config) as (driver, workers):
        service = ModelService(MODEL, 0, n_ctx, N_VOCAB, driver, digest_chat_tokens, digest_tokens)
        with gateway_thread(create_app(service, ReadyView(), keep_alive_s=keep_alive_s)) as port:
            yield Served(f"http://127.0.0.1:{port}", port, driver, workers)


def expected_digests(request: GenerateRequest) -> tuple[str, FinishReason]:
    """The answer of the undivided engine, computed alone."""
    return digest_answer(request, num_layers=NUM_LAYERS, n_vocab=N_VOCAB, vocabulary=DIGESTS)


# ---------------------------------------------------------------- a model


@contextmanager
def served_model(
    path: Path, num_layers: int, folder: Path, *, n_ctx: int = 512
) -> Iterator[tuple[Served, Tokenizer]]:
    """A service over a model file, cut in two."""
    tokenizer = Tokenizer(path)
    template = ChatTemplate(tokenizer.chat_template, tokenizer)
    embedding = cut_embedding(path, folder / "embedding.gguf")
    common = EngineConfig("llama", None, embedding, n_ctx=n_ctx, cells=4 * n_ctx)
    engines: list[tuple[LayerRange, EngineConfig]] = []
    for layers in even_cuts(num_layers, 2):
        slice_path = folder / f"{layers.start}-{layers.end}.gguf"
        cut_slice(path, layers, slice_path)
        engines.append((layers, replace(common, slice_path=slice_path)))
    with local_pipeline(engines, tokenizer, n_ctx=n_ctx) as (driver, workers):
        service = ModelService(
            MODEL,
            0,
            n_ctx,
            tokenizer.n_vocab,
            driver,
            template.encode,
            lambda text: tokenizer.encode(text, add_special=True, parse_special=False),
        )
        with gateway_thread(create_app(service, ReadyView())) as port:
            yield Served(f"http://127.0.0.1:{port}", port, driver, workers), tokenizer
    tokenizer.close()
