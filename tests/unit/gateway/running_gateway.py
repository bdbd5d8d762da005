"""A gateway over a generator that follows a script."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shoal.core.request_times import HistogramView, RequestTimes, RequestTotals, column_names
from shoal.core.sequence import ChoiceEvent, Finished, FinishReason, GenerateRequest, TextDelta
from shoal.core.status import ClusterStatus, LossStatus, NodeStatus, WorkerStatus
from shoal.gateway.app import create_app
from shoal.gateway.service import ChatMessages, ModelService
from tests.support.gateway_thread import DEADLINE_S, gateway_thread

MODEL = "tiny-model"
N_CTX = 2000
N_VOCAB = 50_000
CREATED = 1_700_000_000
DRAWN_SEED = 1234


class Gate:
    """A place in a script where the generator waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        assert self.reached.wait(DEADLINE_S)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._open.set)


Script = Sequence[str | TextDelta | Gate | Exception | FinishReason]


class ScriptedGenerator:
    """Yields texts, waits at gates, raises exceptions; ends with a finish reason, STOP if none.

    Each choice of a request gets every text; one choice after the other, text by text.
    """

    n_ctx = N_CTX

    def __init__(self) -> None:
        self.script: Script = ["Hello", " world"]
        self.requests: list[GenerateRequest] = []
        self.ended = threading.Event()
        self.num_open = 0

    async def generate_choices(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncGenerator[ChoiceEvent, None]:
        self.requests.extend(requests)
        num_texts, reason = 0, FinishReason.STOP
        ended = self.ended  # of this script; a late end must not pass for the next one's
        self.num_open += 1
        try:
            for item in self.script:
                match item:
                    case str() | TextDelta():
                        num_texts += 1
                        for choice in range(len(requests)):
                            yield choice, TextDelta(item) if isinstance(item, str) else item
                    case Gate():
                        await item.wait()
                    case FinishReason():
                        reason = item
                    case _:
                        raise item
            for choice, request in enumerate(requests):
                yield choice, Finished(reason, len(request.prompt_tokens), num_texts)
        finally:
            self.num_open -= 1
            ended.set()


TIMES = RequestTimes(
    request_id="chatcmpl-77",
    outcome="stop",
    prompt_tokens=7,
    generated_tokens=3,
    wall_s=1.0,
    columns=column_names(2),
    prefill=(0, 0, 0, 0, 0.2, 0, 0, 0, 0.4),
    decode=(0, 0, 0, 0, 0.2, 0, 0, 0, 0.2),
    tokens=((0, 0, 0, 0, 0.1, 0, 0, 0, 0.15), (0, 0, 0, 0, 0.1, 0, 0, 0, 0.05)),
)
TOTALS = RequestTotals(
    outcomes={"stop": 3, "overloaded": 1},
    prompt_tokens=21,
    generated_tokens=50,
    time_to_first_token=HistogramView((0.5, 1.0), (2, 0, 1), 2.5),
    inter_token=HistogramView((0.1,), (40, 7), 6.0),
    prefill={"wire": 0.25, "stage 0 compute": 2.25},
    decode={"driver queue": 0.5, "stage 1 compute": 4.0},
)


class FixedView:
    """A cluster of two workers, ready, that has lost one before."""

    def __init__(self) -> None:
        worker = WorkerStatus(
            "w-1", "node-1", 0, "stage", 0, 8, 4711, "127.0.0.1:5001", "live",
            compute_ms=3.25, queue_ms=0.5, ping_ms=0.7, steps=9,
        )  # fmt: skip
        last = replace(worker, worker="w-2", node="node-2", stage=1, layer_start=8, layer_end=16, pid=4712,
                       compute_ms=None, queue_ms=None)  # fmt: skip
        nodes = (
            NodeStatus("node-1", "hot standby takes over", 0.25),
            NodeStatus("node-2", "requests end with an error", None),
        )
        loss = LossStatus("node-3", "w-0", 8, 16, "no answer to pings", "replaced", "warm standby", 1.5, 1.25)
        self.current = ClusterStatus(
            MODEL, True, 3, N_CTX, (worker, last), nodes, (loss,), (), 2, 1, 300, 4000, 2, uptime_s=61.0
        )

    def status(self) -> ClusterStatus:
        return self.current

    def request_times(self, request_id: str | None) -> tuple[RequestTimes, ...]:
        return (TIMES,) if request_id in (None, TIMES.request_id) else ()

    def request_totals(self) -> RequestTotals:
        return TOTALS

    def is_ready(self) -> bool:
        return self.current.ready


def encode_chat(messages: ChatMessages) -> list[int]:
    """One token a character."""
    return encode_text("".join(message["content"] for message in messages))


def encode_text(text: str) -> list[int]:
    return [ord(character) for character in text]


class RunningGateway:
    """The parts that a test changes or looks at, and where the server listens."""

    def __init__(self) -> None:
        self.generator = ScriptedGenerator()
        self.view = FixedView()
        self.encode_threads: set[str] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def follow(self, *script: str | TextDelta | Gate | Exception | FinishReason) -> None:
        """Set the script of the answers to come, and forget earlier ones."""
        self.generator.script = script
        self.generator.requests.clear()
        self.generator.ended = threading.Event()

    @property
    def last_request(self) -> GenerateRequest:
        return self.generator.requests[-1]

    def encode_chat(self, messages: ChatMessages) -> list[int]:
        self.encode_threads.add(threading.current_thread().name)
        return encode_chat(messages)

    def encode_text(self, text: str) -> list[int]:
        self.encode_threads.add(threading.current_thread().name)
        return encode_text(text)


@contextmanager
def running_gateway(*, keep_alive_s: float = 10.0) -> Iterator[RunningGateway]:
    gateway = RunningGateway()
    service = ModelService(
        MODEL, CREATED, N_CTX, N_VOCAB, gateway.generator, gateway.encode_chat, gateway.encode_text
    )
    app = create_app(
        service,
        gateway.view,
        draw_seed=lambda: DRAWN_SEED,
        now_s=lambda: CREATED + 0.5,
        keep_alive_s=keep_alive_s,
    )
    with gateway_thread(app) as gateway.port:
        yield gateway
