"""Where each token's time went: in the driver, on the wire, queued or computed on which stage.

A step's trip has three kinds of evidence: when it left the driver and when its result came (this
process's clock), and how long each stage had it in its queue and in its engine (durations that the
stages report). What is left of the trip is its hops. A token owns the time since the result before
it came; that time is laid against its own step's trip, backwards from the result. So chunks of
a prompt that are in different stages at once are not counted twice, and the sum is the wall time.

Pure, and bounded: the last requests, and rows for their first tokens. The driver calls it on every step.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator

from shoal.core.request_times import (
    ADMISSION,
    DRIVER,
    DRIVER_QUEUE,
    FIRST_STAGE,
    STALL,
    WIRE,
    RequestTimes,
    column_names,
    digits_of,
)
from shoal.pipeline.request_totals import Totals

REMEMBERED_REQUESTS = 64
REMEMBERED_TOKENS = 4096  # 36 bytes each with two stages
REMEMBERED_STEPS = 256  # far above what is ever in flight; steps of cancelled sessions fall out here


class _Request:
    """One session's account. reached_s: up to where its time is attributed. row: of the token that
    is being made. step: the one whose result has come and whose reports have not all."""

    __slots__ = (
        "decode", "ended_s", "has_started", "last_token_s", "num_tokens", "outcome", "prefill",
        "prompt_tokens", "reached_s", "request_id", "row", "rows", "step", "submitted_s",
    )  # fmt: skip

    def __init__(self, request_id: str, prompt_tokens: int, num_stages: int, now_s: float) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.submitted_s = self.reached_s = now_s
        self.ended_s: float | None = None
        self.last_token_s: float | None = None
        self.outcome: str | None = None
        self.has_started = False
        self.num_tokens = 0
        self.row = [0.0] * (FIRST_STAGE + 2 * num_stages)
        self.prefill: tuple[float, ...] | None = None
        self.decode = [0.0] * len(self.row)
        self.rows = array("f")
        self.step: _Step | None = None


class _Step:
    """One step's trip. stages: seconds queued and computed, by stage, in pairs. arrived: results
    that wait for the reports, with whether they ended in a token."""

    __slots__ = ("arrived", "left_s", "num_sessions", "reported", "sent_s", "stages", "stall_s")

    def __init__(self, num_sessions: int, num_stages: int, now_s: float) -> None:
        self.num_sessions = num_sessions
        self.sent_s = self.left_s = now_s
        self.stall_s = 0.0
        self.stages = [0.0] * (2 * num_stages)
        self.reported: set[int] = set()
        self.arrived: list[tuple[_Request, float, bool]] = []

    @property
    def is_reported(self) -> bool:
        return 2 * len(self.reported) == len(self.stages)

    def trip_backwards(self, arrived_s: float) -> Iterator[tuple[int, float]]:
        """(place in a row, seconds), from the result's coming back to the step's being chosen."""
        trip_s = max(0.0, arrived_s - self.left_s)
        staged_s = sum(self.stages)
        # A step that was sent twice may have been computed twice: no more than the trip is shared out.
        share = 1.0 if staged_s <= trip_s else trip_s / staged_s
        hop_s = (trip_s - share * staged_s) / (len(self.stages) // 2 + 1)
        for place in range(len(self.stages) - 1, -1, -1):
            if place % 2:
                yield WIRE, hop_s
            yield FIRST_STAGE + place, share * self.stages[place]
        yield WIRE, hop_s
        yield STALL, self.stall_s
        yield DRIVER, self.left_s - self.stall_s - self.sent_s


class Tracer:
    """Called by DriverCore as things happen; `left` by the shell that does the sending."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.num_stages = 0
        self._live: dict[int, _Request] = {}
        self._ended: deque[_Request] = deque(maxlen=REMEMBERED_REQUESTS)
        self._steps: dict[int, _Step] = {}
        self._leaving: deque[_Step] = deque(maxlen=REMEMBERED_STEPS)

    # ------------------------------------------------------------ what happens to requests

    def submitted(self, session: int, request_id: str, prompt_tokens: int, now_s: float) -> None:
        """A request was taken in."""
        self._live[session] = _Request(request_id, prompt_tokens, self.num_stages, now_s)
        self.totals.prompt_tokens += prompt_tokens

    def refused(self, code: str) -> None:
        """A request was not taken in; `code` of its error."""
        self.totals.outcomes[code] += 1

    def ended(self, session: int, outcome: str, now_s: float) -> None:
        """A session has ended: a finish reason, an error's code, or "cancelled". Idempotent."""
        request = self._live.pop(session, None)
        if request is not None:
            request.outcome = outcome
            request.ended_s = now_s
            self.totals.outcomes[outcome] += 1
            self._ended.append(request)

    # ------------------------------------------------------------ what happens to steps

    def sent(self, step_id: int, num_sessions: int, now_s: float) -> None:
        """A new step has been chosen and is about to leave."""
        step = self._steps[step_id] = _Step(num_sessions, self.num_stages, now_s)
        self._leaving.append(step)
        if len(self._steps) > REMEMBERED_STEPS:
            del self._steps[next(iter(self._steps))]

    def sent_again(self, step_id: int, now_s: float) -> None:
        """What it took so far was in vain."""
        step = self._steps.get(step_id)
        if step is not None:
            step.stall_s += now_s - step.left_s
            step.left_s = now_s

    def left(self, now_s: float) -> None:
        """All that was chosen is on the wire."""
        for step in self._leaving:
            step.left_s = now_s
        self._leaving.clear()

    def reported(self, step_id: int, stage: int, queue_s: float, compute_s: float) -> None:
        """A stage has computed a step, or a part of it."""
        step = self._steps.get(step_id)
        if step is None or 2 * stage >= len(step.stages):
            return
        step.reported.add(stage)
        step.stages[2 * stage] += queue_s
        step.stages[2 * stage + 1] += compute_s
        if step.arrived and step.is_reported:
            self._settle(step_id, step)

    def accepted(self, session: int, step_id: int, now_s: float, *, is_token: bool) -> None:
        """A result was taken in. Its last stage's report comes after it, so it is attributed then."""
        request, step = self._live.get(session), self._steps.get(step_id)
        if request is None:
            return
        if request.step is not None:
            self._attribute_all(request.step)
        if is_token:
            self._count_token(request, now_s)
        if step is not None:
            step.arrived.append((request, now_s, is_token))
            request.step = step
            if step.is_reported:
                self._settle(step_id, step)

    # ------------------------------------------------------------ what others may ask

    def find(self, request_id: str | None) -> tuple[RequestTimes, ...]:
        """All answers of one request, by any of its names; without a name those of the newest
        request. Empty where none is known."""
        known = [*self._ended, *self._live.values()]
        if request_id is None:
            if not known:
                return ()
            request_id = max(known, key=lambda request: request.submitted_s).request_id
        digits = digits_of(request_id)
        return tuple(self._view(request) for request in known if digits_of(request.request_id) == digits)

    def _view(self, request: _Request) -> RequestTimes:
        if request.step is not None:
            self._attribute_all(request.step)
        width = len(request.row)
        rows = request.rows.tolist()
        end_s = request.reached_s if request.ended_s is None else request.ended_s
        return RequestTimes(
            request.request_id,
            request.outcome,
            request.prompt_tokens,
            request.num_tokens,
            end_s - request.submitted_s,
            column_names((width - FIRST_STAGE) // 2),
            request.prefill or tuple(request.row),
            tuple(request.decode),
            tuple(tuple(rows[at : at + width]) for at in range(0, len(rows), width)),
        )

    # ------------------------------------------------------------ attributing

    def _count_token(self, request: _Request, now_s: float) -> None:
        request.num_tokens += 1
        self.totals.generated_tokens += 1
        if request.last_token_s is None:
            self.totals.time_to_first_token.add(now_s - request.submitted_s)
        else:
            self.totals.inter_token.add(now_s - request.last_token_s)
        request.last_token_s = now_s

    def _settle(self, step_id: int, step: _Step) -> None:
        step.num_sessions -= len(step.arrived)
        self._attribute_all(step)
        if step.num_sessions <= 0:
            del self._steps[step_id]

    def _attribute_all(self, step: _Step) -> None:
        for request, arrived_s, is_token in step.arrived:
            _attribute(request, step.trip_backwards(arrived_s), arrived_s)
            if is_token:
                self._end_row(request)
            request.step = None
        step.arrived.clear()

    def _end_row(self, request: _Request) -> None:
        row = request.row
        if request.prefill is None:
            request.prefill = tuple(row)
            self.totals.prefill.add(row)
        else:
            for place, seconds in enumerate(row):
                request.decode[place] += seconds
            self.totals.decode.add(row)
            if len(request.rows) < REMEMBERED_TOKENS * len(row):
                request.rows.extend(row)
        request.row = [0.0] * len(row)


def _attribute(request: _Request, trip: Iterable[tuple[int, float]], arrived_s: float) -> None:
    """Lay the time since the last result against a trip, from its end."""
    unexplained_s = arrived_s - request.reached_s
    request.reached_s = arrived_s
    row = request.row
    for place, seconds in trip:
        if unexplained_s <= 0:
            break
        spent_s = min(seconds, unexplained_s)
        row[place] += spent_s
        unexplained_s -= spent_s
    if unexplained_s > 0:
        row[DRIVER_QUEUE if request.has_started else ADMISSION] += unexplained_s
    request.has_started = True
