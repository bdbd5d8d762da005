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
from shoal.simulator.coarse_cells import CoarseCells, Floats, Ints
from shoal.simulator.coarse_churn import CoarseChurn
from shoal.simulator.coarse_flows import CoarseFlows
from shoal.simulator.coarse_tables import StackedTables, kinds_of_cells
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
        self._stacked = StackedTables(self._tables)
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
        num_gateways = int(self._gateway[-1]) + 1
        self._cells_behind = np.bincount(self._gateway)
        self._waiting = np.zeros(num_gateways, np.int64)
        self._arrivals = CoarseArrivals(
            scenario, self._cells_behind / len(kinds), np.random.default_rng(arrivals_seed)
        )
        self._step_s = step_s or self._choose_step_s()
        self._flows = CoarseFlows()
        self._cell_pace_s = np.zeros(len(kinds))
        self._churn = CoarseChurn(scenario, dealt, np.random.default_rng(churn_seed))

    def run(self, progress: Progress = lambda done_s, total_s: None) -> CoarseResult:
        """Up to the scenario's end, or until KeyboardInterrupt."""
        num_steps = max(1, round(self.scenario.duration_s / self._step_s))
        step_s = self._step_s = self.scenario.duration_s / num_steps
        every = max(1, num_steps // TIME_POINTS)
        done = 0
        try:
            for number in range(num_steps):
                self._step(number * step_s)
                done = number + 1
                if done % every == 0 or done == num_steps:
                    self._note_time(done * step_s)
                    progress(done * step_s, self.scenario.duration_s)
        except KeyboardInterrupt:
            pass  # asked for: the report says that it is partial
        return self._result(done * step_s)

    # ------------------------------------------------------------ one step

    def _step(self, now_s: float) -> None:
        cells, end_s = self._cells, now_s + self._step_s
        for machines, is_loss in self._churn.until(end_s):
            numbers, counts = np.unique(machines, return_counts=True)
            (cells.lose if is_loss else cells.regain)(numbers, counts, now_s)
        cells.restore_standbys(now_s)
        self._take_in(now_s)
        self._dispatch(now_s)
        self._compute(now_s)

    def _take_in(self, now_s: float) -> None:
        in_system = np.bincount(
            self._gateway, self._cells.prompts + self._cells.answers, len(self._waiting)
        ).astype(np.int64)
        come = self._arrivals.come(now_s, self._step_s, in_system + self._waiting)
        self._flows.arrived += int(come.sum())
        room = self._cells_behind * (self.scenario.serving.max_waiting + self.scenario.serving.streams)
        self._waiting += come
        refused = np.maximum(0, self._waiting - room)
        self._waiting -= refused
        self._flows.refused += int(refused.sum())

    def _dispatch(self, now_s: float) -> None:
        """Each gateway gives its requests to its emptiest cells, one each a pass."""
        cells, streams = self._cells, self.scenario.serving.streams
        if not self._waiting.any():
            self._flows.wait_s = np.zeros(0)
            return
        is_answering = cells.answering(now_s)
        for _ in range(PASSES):
            load = cells.prompts + cells.answers
            open_cells = np.flatnonzero(is_answering & (load < streams) & (self._waiting[self._gateway] > 0))
            if not len(open_cells):
                break
            gateway = self._gateway[open_cells]
            order = np.lexsort((load[open_cells], gateway))
            sorted_gateway = gateway[order]
            firsts = np.searchsorted(sorted_gateway, sorted_gateway)
            given = np.arange(len(order)) - firsts < self._waiting[sorted_gateway]
            chosen = open_cells[order[given]]
            cells.prompts[chosen] += 1
            self._waiting -= np.bincount(self._gateway[chosen], minlength=len(self._waiting))
        self._flows.wait_s = self._expected_wait_s()

    def _expected_wait_s(self) -> Floats:
        """Of each gateway's queue now: its length over the rate at which answers end there."""
        return self._waiting / np.maximum(self._flows.rate_per_s(len(self._waiting)), 1e-9)

    def _compute(self, now_s: float) -> None:
        cells, flows, step_s = self._cells, self._flows, self._step_s
        active = np.flatnonzero((cells.prompts + cells.answers > 0) & cells.answering(now_s))
        if not len(active):
            flows.note_ended(self._gateway[active], np.zeros(0, np.int64), len(self._waiting), step_s)
            return
        prompts, answers = cells.prompts[active], cells.answers[active]
        kind, doubling = self._kind[active], cells.doubling[active]
        state = self._stacked.index(kind, doubling, prompts, answers)
        first_s = self._stacked.first_s[state]
        # Prompts keep the cell busy for a part of the step only, then answers go faster.
        per_s = self._stacked.prefill_per_s[state]
        drain_s = np.divide(prompts, per_s, out=np.zeros(len(active)), where=per_s > 0)
        share = np.minimum(1.0, drain_s / step_s)
        started = np.minimum(
            prompts, np.floor(per_s * step_s + self._rng.random(len(active))).astype(np.int64)
        )
        calm = self._stacked.index(kind, doubling, np.zeros_like(prompts), answers)
        tokens_each = self._tokens_each(share, self._stacked.token_s[state], self._stacked.token_s[calm])
        new = self._stacked.index(kind, doubling, np.zeros_like(prompts), np.maximum(started, 1))
        new_each = (1 - share / 2) * step_s / self._stacked.token_s[new]
        fresh_each = np.where(answers > 0, tokens_each, new_each) / 2
        ended, tokens = self._end_answers(answers, started, tokens_each, fresh_each)
        cells.prompts[active] -= started
        cells.answers[active] += started - ended
        flows.answered += int(ended.sum())
        flows.tokens += tokens
        wait_s = flows.waits(self._gateway[active])
        flows.note_first(first_s + wait_s, started)
        pace_s = self._pace_s(
            active, answers, tokens_each, self._stacked.token_s[calm], self._stacked.token_s[new]
        )
        flows.note_token(pace_s, ended)
        flows.note_ended(self._gateway[active], ended, len(self._waiting), step_s)
        self._note_busy(state, calm, share)

    def _pace_s(self, active: Ints, answers: Ints, each: Floats, calm_s: Floats, new_s: Floats) -> Floats:
        """From token to token in each cell, over about the time that an answer takes: what the answers
        that end now have seen. A mean over time of rates, as slow moments last longer."""
        before_s = self._cell_pace_s[active]
        before_s = np.where(before_s > 0, before_s, calm_s)
        mean = max(self.scenario.workload.mean_output_tokens, 1.0)
        weight = np.minimum(1.0, self._step_s / np.maximum(mean * before_s, 1e-12))
        per_s = (1 - weight) / np.maximum(before_s, 1e-12) + weight * each / self._step_s
        pace_s = np.where(answers > 0, 1 / np.maximum(per_s, 1e-12), 0.0)
        self._cell_pace_s[active] = pace_s
        return np.where(answers > 0, pace_s, new_s)

    def _tokens_each(self, share: Floats, busy_s: Floats, calm_s: Floats) -> Floats:
        """Tokens of one answer in this step."""
        busy = np.divide(share, busy_s, out=np.zeros(len(share)), where=busy_s > 0)
        calm = np.divide(1 - share, calm_s, out=np.zeros(len(share)), where=calm_s > 0)
        return (busy + calm) * self._step_s

    def _end_answers(
        self, answers: Ints, started: Ints, each: Floats, fresh_each: Floats
    ) -> tuple[Ints, float]:
        """How many answers end, old and fresh ones, and the tokens of all in this step. The first token
        comes with the prompt; the others are `mean - 1` on average, without memory."""
        mean = self.scenario.workload.mean_output_tokens - 1
        if mean <= 0:
            return started, float(started.sum())
        ended = self._rng.binomial(answers, -np.expm1(-each / mean))
        ended += self._rng.binomial(started, -np.expm1(-fresh_each / mean))
        # Expected tokens of answers that may end within the step.
        made = answers * mean * -np.expm1(-each / mean) + started * mean * -np.expm1(-fresh_each / mean)
        return ended, float(made.sum() + started.sum())

    def _note_busy(self, state: Ints, calm: Ints, share: Floats) -> None:
        flows, tables = self._flows, self._stacked
        flows.busy_s += float(
            (share * tables.stage_busy[state] + (1 - share) * tables.stage_busy[calm]).sum() * self._step_s
        )
        flows.link_s += float(
            (share * tables.link_s_per_s[state] + (1 - share) * tables.link_s_per_s[calm]).sum()
            * self._step_s
        )

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
                requests_waiting=int(self._waiting.sum()),
                tokens=round(flows.tokens - flows.tokens_noted),
                machines_lost=lost - flows.lost_noted,
            )
        )
        flows.tokens_noted, flows.lost_noted = flows.tokens, lost

    def _result(self, elapsed_s: float) -> CoarseResult:
        flows, cells = self._flows, self._cells
        running = int((cells.prompts + cells.answers).sum() + self._waiting.sum())
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
