"""The door in virtual time: one queue before all cells, each request to the emptiest that is ready.

With one cell it stands aside: the driver's own queue and its refusals decide. With more it gives a
cell only as many requests as it has sequences, so that nobody waits behind a cell that has stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import simpy

from shoal.core.errors import Overloaded, ShoalError
from shoal.core.sequence import GenerateRequest, SamplingParams
from shoal.simulator.records import Outcome, RequestRecord
from shoal.simulator.tally_engine import TOKEN
from shoal.simulator.virtual_cluster import VirtualCluster
from shoal.simulator.virtual_head import Answer
from shoal.simulator.virtual_network import Process
from shoal.simulator.workload import Arrival

RETRY_S = 0.5


class Visit:
    """One request on its way, from the door to its outcome."""

    __slots__ = ("answer", "arrival", "cell", "error", "number")

    def __init__(self, number: int, arrival: Arrival) -> None:
        self.number = number
        self.arrival = arrival
        self.cell: int | None = None
        self.answer: Answer | None = None
        self.error: ShoalError | None = None

    @property
    def request(self) -> GenerateRequest:
        return GenerateRequest(
            str(self.number),
            (TOKEN,) * self.arrival.prompt_tokens,
            self.arrival.output_tokens,
            SamplingParams(temperature=0.0, seed=self.number),
        )

    @property
    def failure(self) -> ShoalError | None:
        """Why it has no answer; None while it may still get one, or has."""
        answer = self.answer
        return answer.end if answer is not None and isinstance(answer.end, ShoalError) else self.error

    def record(self) -> RequestRecord:
        """As things stand now."""
        answer, error = self.answer, self.failure
        pieces = [] if answer is None else answer.pieces_s
        gaps = [after - before for before, after in pairwise(pieces)]
        return RequestRecord(
            number=self.number,
            at_s=self.arrival.at_s,
            prompt_tokens=self.arrival.prompt_tokens,
            output_tokens=self.arrival.output_tokens,
            cell=self.cell,
            outcome=self._outcome(error),
            tokens=len(pieces),
            first_s=pieces[0] if pieces else None,
            end_s=None if answer is None else answer.end_s,
            last_s=pieces[-1] if pieces else None,
            longest_gap_s=max(gaps, default=None),
            error=None if error is None else error.code,
        )

    def _outcome(self, error: ShoalError | None) -> Outcome:
        if error is not None:
            was_taken_in = self.answer is not None and self.answer.is_admitted
            return Outcome.LOST if was_taken_in else Outcome.REFUSED
        if self.answer is None or self.answer.end is None:
            return Outcome.UNFINISHED
        return Outcome.ANSWERED


class VirtualGateway:
    """Sends requests to cells. room: requests that a cell has at once. max_waiting: at the door.
    ended: told when a visit has its outcome."""

    def __init__(
        self,
        env: simpy.Environment,
        cells: Sequence[VirtualCluster],
        *,
        room: int,
        max_waiting: int,
        ended: Callable[[Visit], None],
    ) -> None:
        self.visits: list[Visit] = []
        self._env = env
        self._cells = cells
        self._room = room
        self._max_waiting = max_waiting
        self._ended = ended
        self._running = [0] * len(cells)
        self._by_answer: dict[int, Visit] = {}
        self._waiting: deque[Visit] = deque()
        if len(cells) > 1:
            env.process(self._retry())

    @property
    def num_running(self) -> int:
        return sum(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def arrive(self, arrival: Arrival) -> None:
        """A request comes now."""
        visit = Visit(len(self.visits), arrival)
        self.visits.append(visit)
        if len(self._cells) == 1:
            self._send(visit, 0)
        elif len(self._waiting) >= self._max_waiting:
            visit.error = Overloaded(f"{len(self._waiting)} requests wait.", retry_after_s=RETRY_S)
            self._ended(visit)
        else:
            self._waiting.append(visit)
            self._dispatch()

    def answer_ended(self, answer: Answer) -> None:
        """A cell's answer has its end."""
        visit = self._by_answer.pop(id(answer))
        assert visit.cell is not None
        self._running[visit.cell] -= 1
        self._ended(visit)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._waiting:
            ready = [
                number
                for number, cell in enumerate(self._cells)
                if self._running[number] < self._room and cell.head.driver.is_routed
            ]
            if not ready:
                return
            emptiest = min(ready, key=lambda number: (self._running[number], number))
            self._send(self._waiting.popleft(), emptiest)

    def _send(self, visit: Visit, cell: int) -> None:
        visit.cell = cell
        self._running[cell] += 1
        visit.answer = Answer(visit.request)
        self._by_answer[id(visit.answer)] = visit
        self._cells[cell].head.admit(visit.answer)

    def _retry(self) -> Process:
        """A cell that is ready again says nothing by itself."""
        while True:
            yield self._env.timeout(RETRY_S)
            self._dispatch()
