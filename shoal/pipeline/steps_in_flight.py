"""Steps on their way through the stages, and when each of them is overdue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.config import DriverConfig
from shoal.pipeline.scheduler import InFlight
from shoal.pipeline.stage_statistics import StageStatistics
from shoal.wire.messages import Entry

MAX_PATIENCE_DOUBLINGS = 2


@dataclass(slots=True)
class StepRecord:
    """entries: those without a result, by session. seen: the last that a stage reported of it."""

    step_id: int
    is_prefill: bool
    entries: dict[int, Entry]
    sent_s: float
    deadline_s: float = 0.0
    resends: int = 0
    seen: str = "no stage has reported it"


class StepsInFlight:
    """Deadlines come from what steps of the same kind took lately, with a floor for the first."""

    def __init__(self, config: DriverConfig, statistics: StageStatistics) -> None:
        self._config = config
        self._statistics = statistics
        self._steps: dict[int, StepRecord] = {}
        self._next_step = 1

    def __len__(self) -> int:
        return len(self._steps)

    def counts(self) -> InFlight:
        prefill = sum(record.is_prefill for record in self._steps.values())
        return InFlight(len(self._steps) - prefill, prefill)

    def add(self, entries: tuple[Entry, ...], *, is_prefill: bool, now_s: float) -> StepRecord:
        """A step that is being sent now."""
        record = StepRecord(self._next_step, is_prefill, {e.session: e for e in entries}, now_s)
        self._next_step += 1
        self._steps[record.step_id] = record
        self._set_deadline(record, now_s)
        return record

    def progressed(self, step_id: int, seen: str, now_s: float) -> None:
        """A stage has reported a step: it is under way, so its deadline moves."""
        record = self._steps.get(step_id)
        if record is not None:
            record.seen = seen
            self._set_deadline(record, now_s)

    def returned(self, step_id: int, now_s: float) -> None:
        """A result of this step came: learn from its round trip, unless it was sent again."""
        record = self._steps.get(step_id)
        if record is not None and not record.resends:
            self._statistics.add_round_trip(now_s - record.sent_s, is_prefill=record.is_prefill)

    def overdue(self, now_s: float) -> list[StepRecord]:
        return [record for record in self._steps.values() if record.deadline_s <= now_s]

    def resent(self, record: StepRecord, now_s: float) -> None:
        """A step is being sent again; its next deadline is farther."""
        record.resends += 1
        self._set_deadline(record, now_s)

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
            del self._steps[record.step_id]

    def _set_deadline(self, record: StepRecord, now_s: float) -> None:
        usual_s = self._statistics.round_trip_s(is_prefill=record.is_prefill)
        patience_s = max(self._config.resend_after_s, 4 * usual_s)
        record.deadline_s = now_s + patience_s * 2 ** min(record.resends, MAX_PATIENCE_DOUBLINGS)
