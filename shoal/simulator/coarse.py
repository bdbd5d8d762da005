"""The coarse mode: 100,000 machines as cells in a few arrays, in steps of seconds.

What it keeps: machines come and go one by one or in rooms, cells stall, fall and rise, requests are
counted from the door to their outcome, every cell's speed depends on what it has to do. What it gives
up: single requests (answers end at random with the stated mean length), single messages, and which
machine holds what. docs/SIMULATE.md has its error against the fine mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.simulator.cell_plan import deal_machines
from shoal.simulator.coarse_arrivals import CoarseArrivals
from shoal.simulator.coarse_cells import CoarseCells, Flags, Floats, Ints
from shoal.simulator.coarse_churn import CoarseChurn
from shoal.simulator.coarse_flows import CoarseFlows
from shoal.simulator.coarse_gateways import CoarseGateways
from shoal.simulator.coarse_queues import CoarseQueues
from shoal.simulator.coarse_step_tables import StepTables
from shoal.simulator.coarse_tables import kinds_of_cells
from shoal.simulator.records import Outcome, TimePoint
from shoal.simulator.scenario import Scenario

MAX_STEPS: Final = 15_000
FINEST_STEP_S: Final = 0.05
TIME_POINTS: Final = 200
PASSES: Final = 8  # requests that one cell is given in one step at most
Progress = Callable[[float, float], None]


@dataclass(slots=True)
class CoarseResult:
    """first_s, token_s: weights of the bins of coarse_flows.BINS, by requests."""

    scenario: Scenario
    step_s: float
    elapsed_s: float
    outcomes: dict[Outcome, int]
    tokens: float
    timeline: list[TimePoint]
    machines_lost: int
    machine_s_by_kind: dict[str, float]
    first_s: Floats
    token_s: Floats
    stalls_s: Floats
    availability: float
    stage_busy: float
    communication_share: float
    link_bytes_per_token: float
    num_cells: int
    num_stages: float

    @property
    def is_partial(self) -> bool:
        return self.elapsed_s < self.scenario.duration_s


class CoarseSimulation:
    """step_s: None chooses a tenth of a request's time, in MAX_STEPS steps at most."""

    def __init__(self, scenario: Scenario, seed: int, *, step_s: float | None = None) -> None:
        self.scenario = scenario
        arrivals_seed, churn_seed, cells_seed = np.random.SeedSequence(seed).spawn(3)
        self._rng = np.random.default_rng(cells_seed)
        dealt = deal_machines(scenario)
        self._tables, kinds = kinds_of_cells(scenario, dealt)
        self._kind = kinds
        serving, churn = scenario.serving, scenario.churn
        self._cells = CoarseCells(
            self._tables,
            kinds,
            survive=serving.survive,
            notice_s=scenario.notice_s,
            polite_share=churn.polite_share if churn else 0.0,
            rng=self._rng,
        )
        self._gateway = np.arange(len(kinds)) // serving.gateway_cells
        cells_behind = np.bincount(self._gateway)
        self._arrivals = CoarseArrivals(
            scenario, cells_behind / len(kinds), np.random.default_rng(arrivals_seed)
        )
        self._gateways = CoarseGateways(len(kinds), serving.gateway_cells)
        wanted_s = step_s or self._choose_step_s()
        self._num_steps = max(1, round(scenario.duration_s / wanted_s))
        self._step_s = scenario.duration_s / self._num_steps
        self._queues = CoarseQueues(cells_behind * serving.max_waiting, self._step_s)
        self._steps = StepTables(self._tables, self._step_s, scenario.workload.mean_output_tokens)
        self._state = self._steps.state(kinds, self._cells.doubling)
        self._flows = CoarseFlows()
        self._is_stopped = False
        self._pace = np.zeros(len(kinds))
        self._churn = CoarseChurn(scenario, dealt, np.random.default_rng(churn_seed))

    def run(self, progress: Progress = lambda done_s, total_s: None) -> CoarseResult:
        """Up to the scenario's end, until `stop`, or until `progress` raises KeyboardInterrupt."""
        num_steps, step_s = self._num_steps, self._step_s
        every = max(1, num_steps // TIME_POINTS)
        done = 0
        try:
            for number in range(num_steps):
                self._step(number * step_s)
                done = number + 1
                if self._is_stopped:
                    break
                if done % every == 0 or done == num_steps:
                    self._note_time(done * step_s)
                    progress(done * step_s, self.scenario.duration_s)
        except KeyboardInterrupt:
            pass  # asked for: the report says that it is partial
        return self._result(done * step_s)

    def stop(self) -> None:
        """End after the step under way, so that every request is counted once; may come from a signal."""
        self._is_stopped = True

    # ------------------------------------------------------------ one step

    def _step(self, now_s: float) -> None:
        cells, end_s = self._cells, now_s + self._step_s
        for machines, is_loss in self._churn.until(end_s):
            numbers, counts = np.unique(machines, return_counts=True)
            (cells.lose if is_loss else cells.regain)(numbers, counts, now_s)
            self._state = self._steps.state(self._kind, cells.doubling)
        cells.restore_standbys(now_s)
        come = self._arrivals.come(now_s, self._step_s, self._num_present)
        self._flows.arrived += int(come.sum())
        self._queues.add(come)
        is_answering = cells.answering(now_s)
        self._dispatch(is_answering)
        self._compute(is_answering)

    def _num_present(self) -> Ints:
        """Requests at each gateway and in its cells."""
        queues = self._queues
        in_cells = np.bincount(self._gateway, self._cells.prompts + self._cells.answers, len(queues.waiting))
        found: Ints = in_cells.astype(np.int64) + queues.waiting
        return found

    def _dispatch(self, is_answering: Flags) -> None:
        """Each gateway gives its requests to its emptiest cells, one each a pass."""
        cells, queues, streams = self._cells, self._queues, self.scenario.serving.streams
        for _ in range(PASSES):
            if queues.is_empty:
                break
            load = np.where(is_answering, cells.prompts + cells.answers, streams)
            chosen = self._gateways.emptiest(load, queues.waiting, streams)
            if not len(chosen):
                break
            cells.prompts[chosen] += 1
            queues.take(np.bincount(self._gateway[chosen], minlength=len(queues.waiting)))
        self._flows.refused += queues.end_step()

    def _compute(self, is_answering: Flags) -> None:
        """All cells at once. One that does not answer counts as empty: nothing happens in it."""
        cells, flows, step = self._cells, self._flows, self._steps
        prompts, answers = cells.prompts * is_answering, cells.answers * is_answering
        state = self._state + prompts * step.prompt_step + answers
        drawn = self._rng.random((2, len(state)))
        started = np.minimum(prompts, (step.started[state] + drawn[0]).astype(np.int64))
        ended = np.minimum(answers, step.num_ended(state, drawn[1]))
        begins = np.flatnonzero(started)
        ended_fresh, made_fresh = self._end_fresh(state[begins], started[begins])
        pace_per_s = self._pace_per_s(state, answers)
        self._note_first(state, started)
        ends = np.flatnonzero(ended)
        flows.note_token(1 / pace_per_s[ends], ended[ends])
        fresh = begins[np.flatnonzero(ended_fresh)]
        new_s = step.new_s[state[fresh], started[fresh]]
        pace_s = np.divide(1, pace_per_s[fresh], out=new_s, where=pace_per_s[fresh] > 0)
        flows.note_token(pace_s, ended_fresh[ended_fresh > 0])
        ended[begins] += ended_fresh
        cells.prompts -= started
        cells.answers += started - ended
        flows.answered += int(ended.sum())
        in_state = np.bincount(state, minlength=len(step.made))
        flows.tokens += float(in_state @ step.made) + made_fresh + float(started.sum())
        flows.busy_s += float(in_state @ step.busy_s)
        flows.link_s += float(in_state @ step.link_s)

    def _note_first(self, state: Ints, started: Ints) -> None:
        flows, first_s, waited_s = self._flows, self._steps.first_s, self._queues.waited_s
        if waited_s.any():
            begins = np.flatnonzero(started)
            flows.note_first(first_s[state[begins]] + waited_s[self._gateway[begins]], started[begins])
        else:
            flows.note_first(first_s, np.bincount(state, started, len(first_s)))

    def _end_fresh(self, state: Ints, started: Ints) -> tuple[Ints, float]:
        """Of answers that started in this step: how many end in it, and the tokens of all after the first."""
        chance = self._steps.end_fresh[state, started]
        ended = (self._rng.random(len(state)) < chance).astype(np.int64)
        several = np.flatnonzero(started > 1)
        ended[several] = self._rng.binomial(started[several], chance[several])
        return ended, float(started @ chance) * max(self._steps.later_tokens, 0.0)

    def _pace_per_s(self, state: Ints, answers: Ints) -> Floats:
        """Tokens a second of an answer in each cell, over about the time that an answer takes: what the
        answers that end now have seen. A mean over time, as slow moments last longer, and of stalls too, in
        which there are none. 0 without answers."""
        step, mean = self._steps, max(self.scenario.workload.mean_output_tokens, 1.0)
        pace = self._pace
        new = np.flatnonzero((pace == 0) & (answers > 0))
        pace[new] = 1 / step.calm_s[state[new]]
        weight = np.minimum(1.0, pace * (self._step_s / mean))
        pace += weight * (step.tokens_each[state] / self._step_s - pace)
        pace *= self._cells.answers > 0
        return pace

    # ------------------------------------------------------------ results

    def _choose_step_s(self) -> float:
        tables = self._tables[0]
        request_s = (
            tables.first_s[0, 1, 0] + self.scenario.workload.mean_output_tokens * tables.token_s[0, 0, 1]
        )
        return float(max(request_s / 10, FINEST_STEP_S, self.scenario.duration_s / MAX_STEPS))

    def _note_time(self, now_s: float) -> None:
        flows, cells = self._flows, self._cells
        lost = cells.num_lost_machines
        flows.timeline.append(
            TimePoint(
                at_s=now_s,
                machines_present=int(cells.there.sum()),
                cells_ready=int(cells.answering(now_s).sum()),
                requests_running=int((cells.prompts + cells.answers).sum()),
                requests_waiting=int(self._queues.waiting.sum()),
                tokens=round(flows.tokens - flows.tokens_noted),
                machines_lost=lost - flows.lost_noted,
            )
        )
        flows.tokens_noted, flows.lost_noted = flows.tokens, lost

    def _result(self, elapsed_s: float) -> CoarseResult:
        flows, cells = self._flows, self._cells
        running = int((cells.prompts + cells.answers).sum() + self._queues.waiting.sum())
        stage_s = flows.busy_s * float(cells.stages.mean())
        return CoarseResult(
            scenario=self.scenario,
            step_s=self._step_s,
            elapsed_s=elapsed_s,
            outcomes={
                Outcome.ANSWERED: flows.answered,
                Outcome.REFUSED: flows.refused,
                Outcome.LOST: cells.num_lost_requests,
                Outcome.UNFINISHED: running,
            },
            tokens=flows.tokens,
            timeline=flows.timeline,
            machines_lost=cells.num_lost_machines,
            machine_s_by_kind=self._churn.machine_s_by_kind(elapsed_s),
            first_s=flows.first_s,
            token_s=flows.token_s,
            stalls_s=np.concatenate([np.zeros(0), *cells.stalls_s]),
            availability=cells.availability(elapsed_s),
            stage_busy=flows.busy_s / (len(self._kind) * max(elapsed_s, 1e-9)),
            communication_share=flows.link_s / max(flows.link_s + stage_s, 1e-12),
            link_bytes_per_token=float(np.mean([table.link_bytes_per_token for table in self._tables])),
            num_cells=len(self._kind),
            num_stages=float(cells.stages.mean()),
        )
