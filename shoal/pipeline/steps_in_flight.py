"""Steps on their way through the stages, and when each of them is overdue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.config import DriverConfig
from shoal.pipeline.scheduler import InFlight
from shoal.pipeline.stage_statistics import StageStatistics
from shoal.wire.messages import Entry

MAX_PATIENCE_DOUBLINGS = 2
REMEMBERED_STEPS = 64  # that have returned: the last stage's report comes behind its result


@dataclass(slots=True)
class StepRecord:
    """entries: those without a result, by session. total_tokens: of all entries that it had. num_received,
    num_sent_on: stages, from the first, that reported so. hop_deadline_s: when the next stage must have
    received it; None while a stage computes. lost_hop: the stage that it did not reach in time, until it
    does."""

    step_id: int
    is_prefill: bool
    entries: dict[int, Entry]
    sent_s: float
    total_tokens: int
    deadline_s: float = 0.0
    resends: int = 0
    num_received: int = 0
    num_sent_on: int = 0
    hop_deadline_s: float | None = None
    lost_hop: int | None = None

    @property
    def num_tokens(self) -> int:
        return sum(len(entry.tokens) for entry in self.entries.values())


class StepsInFlight:
    """Deadlines come from what steps of the same kind took lately, with a floor for the first."""

    def __init__(self, config: DriverConfig, statistics: StageStatistics) -> None:
        self.row_bytes = 0  # of one boundary row, for the time that a hop may take
        self._config = config
        self._statistics = statistics
        self._steps: dict[int, StepRecord] = {}
        self._returned: dict[int, StepRecord] = {}
        self._next_step = 1

    def __len__(self) -> int:
        return len(self._steps)

    def find(self, step_id: int) -> StepRecord | None:
        """A step that is under way, or has returned lately."""
        return self._steps.get(step_id) or self._returned.get(step_id)

    def counts(self) -> InFlight:
        prefill = sum(record.is_prefill for record in self._steps.values())
        return InFlight(len(self._steps) - prefill, prefill)

    def add(self, entries: tuple[Entry, ...], *, is_prefill: bool, now_s: float) -> StepRecord:
        """A step that is being sent now."""
        total_tokens = sum(len(entry.tokens) for entry in entries)
        record = StepRecord(self._next_step, is_prefill, {e.session: e for e in entries}, now_s, total_tokens)
        self._next_step += 1
        self._steps[record.step_id] = record
        self._set_deadline(record, now_s)
        self._expect_hop(record, now_s)
        return record

    def received(self, step_id: int, stage: int, now_s: float) -> None:
        """Stage number `stage` has a step in its queue: it is under way, so its deadline moves."""
        record = self._steps.get(step_id)
        if record is not None:
            _note_received(record, stage)
            self._set_deadline(record, now_s)

    def sent_on(self, step_id: int, stage: int, now_s: float) -> None:
        """Stage number `stage` has received a step, computed it and sent it to the next."""
        record = self._steps.get(step_id)
        if record is not None:
            _note_received(record, stage)
            record.num_sent_on = max(record.num_sent_on, stage + 1)
            self._set_deadline(record, now_s)
            if record.num_received <= record.num_sent_on:
                self._expect_hop(record, now_s)

    def returned(self, step_id: int, now_s: float) -> None:
        """A result of this step came: learn from its round trip, unless it was sent again."""
        record = self._steps.get(step_id)
        if record is not None and not record.resends:
            self._statistics.add_round_trip(now_s - record.sent_s, is_prefill=record.is_prefill)

    def overdue(self, now_s: float) -> list[StepRecord]:
        return [record for record in self._steps.values() if record.deadline_s <= now_s]

    def hop_overdue(self, now_s: float) -> list[StepRecord]:
        """Steps that one stage has sent on and the next has not received in time."""
        return [
            record
            for record in self._steps.values()
            if record.hop_deadline_s is not None and record.hop_deadline_s <= now_s
        ]

    def resent(self, record: StepRecord, now_s: float) -> None:
        """A step is being sent again; its next deadline is farther."""
        record.resends += 1
        self._start_over(record, now_s)

    def hop_lost(self, record: StepRecord, now_s: float) -> bool:
        """A step is being sent again because a hop seems to have lost it; True when that hop lost
        it before."""
        again = record.lost_hop == record.num_received
        record.lost_hop = record.num_received
        self._start_over(record, now_s)
        return again

    def restart(self, now_s: float) -> list[StepRecord]:
        """Everything starts over along a new route; returns what must be sent."""
        for record in self._steps.values():
            record.resends = 0
            record.lost_hop = None
            record.sent_s = now_s
            self._start_over(record, now_s)
        return list(self._steps.values())

    def settle(self, session: int, start: int) -> None:
        """An entry has its result."""
        for record in list(self._steps.values()):
            entry = record.entries.get(session)
            if entry is not None and entry.start == start:
                self._drop(record, session)
                return

    def forget(self, session: int) -> None:
        """A session has ended: nothing of it is awaited any more."""
        for record in list(self._steps.values()):
            if session in record.entries:
                self._drop(record, session)

    def _drop(self, record: StepRecord, session: int) -> None:
        del record.entries[session]
        if not record.entries:
            self._returned[record.step_id] = self._steps.pop(record.step_id)
            if len(self._returned) > REMEMBERED_STEPS:
                del self._returned[next(iter(self._returned))]

    def _start_over(self, record: StepRecord, now_s: float) -> None:
        record.num_received = record.num_sent_on = 0
        self._set_deadline(record, now_s)
        self._expect_hop(record, now_s)

    def _expect_hop(self, record: StepRecord, now_s: float) -> None:
        bytes_time_s = record.num_tokens * self.row_bytes / self._config.slowest_link_bytes_per_s
        record.hop_deadline_s = now_s + self._config.hop_deadline_s + bytes_time_s

    def _set_deadline(self, record: StepRecord, now_s: float) -> None:
        usual_s = self._statistics.round_trip_s(is_prefill=record.is_prefill)
        patience_s = max(self._config.resend_after_s, 4 * usual_s)
        record.deadline_s = now_s + patience_s * 2 ** min(record.resends, MAX_PATIENCE_DOUBLINGS)


def _note_received(record: StepRecord, stage: int) -> None:
    record.num_received = max(record.num_received, stage + 1)
    record.hop_deadline_s = None
    if record.lost_hop is not None and record.lost_hop <= stage:
        record.lost_hop = None
