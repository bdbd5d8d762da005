"""The driver's policy, driven by hand: say what comes, read what it sends and delivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from shoal.core.config import DriverConfig
from shoal.core.errors import ShoalError
from shoal.core.placement import DRIVER, Endpoint, Epoch, NodeId, Placement, Standby, WorkerId, WorkerInfo
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams, SessionId, TextDelta
from shoal.core.specs import LayerRange
from shoal.pipeline.actions import Deliver, PipelineEvent, SendTo
from shoal.pipeline.admission import Capacity
from shoal.pipeline.protocol import DriverCore
from shoal.wire.messages import Close, Closed, Output, Peers, PeersTaken, Result, Step, ToDriver
from tests.support.digest_reference import NumberVocabulary

EOG = 7
N_CTX = 100
STAGES = (WorkerId("w0"), WorkerId("w1"), WorkerId("w2"))
CAPACITY = Capacity(cells=200, sequences=4, batch_tokens=16)
DRIVER_ENDPOINT = Endpoint("127.0.0.1", 1, "driver key")

M = TypeVar("M")


def request(
    prompt: int = 4, max_tokens: int = 5, *, stop: tuple[str, ...] = (), ignore_eog: bool = False
) -> GenerateRequest:
    tokens = tuple(range(100, 100 + prompt))
    return GenerateRequest("r", tokens, max_tokens, SamplingParams(seed=3), stop, ignore_eog)


def info(worker: str, stage: int) -> WorkerInfo:
    """A worker with the layers of a stage, two each, on a node of its own."""
    layers = LayerRange(2 * stage, 2 * stage + 2)
    endpoint = Endpoint("127.0.0.1", 5000, f"key of {worker}")
    return WorkerInfo(WorkerId(worker), NodeId(f"node of {worker}"), layers, endpoint, 6000, 1)


def placement(
    epoch: int,
    stages: Sequence[str] = STAGES,
    *,
    hot: dict[str, int] | None = None,
    warm: dict[str, int] | None = None,
) -> Placement:
    """Stages of two layers each. hot, warm: standbys, with the number of their stage."""
    standbys = [Standby(info(w, stage), True) for w, stage in (hot or {}).items()]
    standbys += [Standby(info(w, stage), False) for w, stage in (warm or {}).items()]
    return Placement(Epoch(epoch), tuple(info(w, i) for i, w in enumerate(stages)), tuple(standbys))


class OneDriver:
    """On a route of three stages, which everybody has confirmed. The clock stands in `now_s`.

    Hops have long deadlines unless a config says otherwise.
    """

    def __init__(self, config: DriverConfig | None = None, capacity: Capacity = CAPACITY) -> None:
        self.config = config or DriverConfig(
            chunk_tokens=8, max_waiting=3, resend_after_s=10.0, max_resends=2, hop_deadline_s=1e6
        )
        self.core = DriverCore(self.config, NumberVocabulary(frozenset({EOG})), N_CTX, DRIVER_ENDPOINT)
        self.now_s = 0.0
        self.sends: list[SendTo] = []
        self.delivered: dict[SessionId, list[TextDelta | Finished | ShoalError]] = {}
        self.events: list[PipelineEvent] = []
        self.route_along(placement(1), capacity)
        self.sends.clear()

    def place(self, placement: Placement, capacity: Capacity = CAPACITY) -> None:
        """Give the driver a placement; nobody has confirmed it yet."""
        self.core.set_placement(placement, capacity, self.now_s)
        self.look()

    def route_along(self, placement: Placement, capacity: Capacity = CAPACITY) -> None:
        """Give the driver a placement that everybody confirms at once."""
        self.place(placement, capacity)
        for worker in reversed(placement.workers):
            self.confirm(worker.worker, placement.epoch)

    def confirm(self, worker: str, epoch: int) -> None:
        self.receive(PeersTaken(epoch, worker))

    def lose(self, worker: str) -> None:
        self.core.lose_worker(WorkerId(worker), self.now_s)
        self.look()

    def look(self) -> None:
        """Take in what the driver wants done."""
        for action in self.core.take_actions():
            if isinstance(action, Deliver):
                self.delivered.setdefault(action.session, []).append(action.event)
            elif isinstance(action, SendTo):
                self.sends.append(action)
            else:
                self.events.append(action)

    def take_events(self) -> list[PipelineEvent]:
        """What the driver has noticed since the last look."""
        events, self.events = self.events, []
        return events

    def told(self) -> list[tuple[str, int]]:
        """Who was told of which epoch since the last look; all else is forgotten."""
        sends, self.sends = self.sends, []
        return [(s.to, s.message.epoch) for s in sends if isinstance(s.message, Peers)]

    def submit(self, asked: GenerateRequest | None = None) -> SessionId:
        session = self.core.submit(asked or request(), self.now_s)
        self.look()
        return session

    def receive(self, message: ToDriver) -> None:
        self.core.receive(message, self.now_s)
        self.look()

    def tick_at(self, now_s: float) -> None:
        self.now_s = now_s
        self.core.tick(now_s)
        self.look()

    def take(self, kind: type[M], to: str | None = None) -> list[M]:
        """Messages of one kind sent since the last look; all others are forgotten."""
        sends, self.sends = self.sends, []
        return [s.message for s in sends if isinstance(s.message, kind) and to in (None, s.to)]

    def result(self, step: Step, *tokens: int | None, epoch: int | None = None, sender: str = "w2") -> None:
        """The last stage answers a step; tokens: of its entries that are sampled, in order."""
        drawn = iter(tokens)
        outputs = tuple(
            Output(e.session, e.attempt, e.start, e.stop, next(drawn) if e.sample else None)
            for e in step.entries
        )
        self.receive(Result(step.epoch if epoch is None else epoch, step.step_id, sender, outputs))

    def answer_all(self, token: int, max_steps: int = 1000) -> None:
        """Answer every step at once, with the same token everywhere, until none is left."""
        for _ in range(max_steps):
            steps = self.take(Step)
            if not steps:
                return
            for step in steps:
                self.result(step, *[token] * len(step.entries))
        raise AssertionError("steps without end")

    def confirm_closed(self, *sessions: SessionId) -> None:
        for worker in STAGES:
            self.receive(Closed(sessions, worker))

    def text(self, session: SessionId) -> str:
        return "".join(e.text for e in self.delivered.get(session, []) if isinstance(e, TextDelta))

    def end(self, session: SessionId) -> Finished | ShoalError | None:
        """How a session ended, once; None while it goes on."""
        ends = [e for e in self.delivered.get(session, []) if not isinstance(e, TextDelta)]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def closes_to(self) -> list[tuple[str, tuple[int, ...]]]:
        sends, self.sends = self.sends, []
        return [(s.to, s.message.sessions) for s in sends if isinstance(s.message, Close)]

    @property
    def is_empty(self) -> bool:
        core = self.core
        nothing = core.num_active == core.num_waiting == core.num_steps_in_flight == 0
        return nothing and core.admission.num_sequences == core.admission.cells_reserved == 0


__all__ = [
    "CAPACITY",
    "DRIVER",
    "DRIVER_ENDPOINT",
    "EOG",
    "N_CTX",
    "STAGES",
    "OneDriver",
    "info",
    "placement",
    "request",
]
