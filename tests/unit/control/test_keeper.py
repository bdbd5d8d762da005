"""What the keeper does about each event, with a driver, a watch and a starter that only note what
they are asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from shoal.control import keeper as keeper_module
from shoal.control.cluster_state import ClusterState, Loss
from shoal.control.keeper import Keeper, Started
from shoal.control.recovery import Rung, Start
from shoal.core.errors import ClusterError, ConfigError, ShoalError
from shoal.core.placement import DRIVER, NodeId, Placement, WorkerId, WorkerInfo
from shoal.engine.interface import EngineLimits
from shoal.pipeline.actions import HandedOver, LinkCut, Resumed, StageSilent
from shoal.pipeline.driver import Driver, DriverStatistics
from shoal.pipeline.stage_statistics import ReplayEstimate
from tests.unit.control.any_facts import ranges_of, worker_on

DEADLINE_S = 10.0
ONE, TWO = ranges_of(2)
N0, N1, N2, N3 = (NodeId(f"n{number}") for number in range(4))
A, B = worker_on(N0, ONE, 0), worker_on(N1, TWO, 1)
LIMITS = EngineLimits(
    cells=100, max_sequences=1, max_batch_tokens=8, row_width_in=8, row_width_out=8, mixes_chunks=True,
    can_trim=True, state_bytes=0,
)  # fmt: skip

Call = tuple[object, ...]


@dataclass
class Calls:
    """Everything that was asked, in order; and waiting for it."""

    made: list[Call] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, *call: object) -> None:
        with self.changed:
            self.made.append(call)
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), self.made

    def of(self, kind: str) -> list[Call]:
        return [call[1:] for call in self.made if call[0] == kind]


class ScriptedDriver:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def set_placement(
        self, placement: Placement, limits: Mapping[WorkerId, EngineLimits], journal_bytes: int
    ) -> None:
        assert set(limits) == {worker.worker for worker in placement.workers}
        self._calls.add("place", placement, journal_bytes)

    def lose_worker(self, worker: WorkerId) -> None:
        self._calls.add("lose", worker)

    def hand_over(self, leaving: WorkerId, successor: WorkerId) -> None:
        self._calls.add("hand over", leaving, successor)

    def fail_all(self, error: ShoalError) -> None:
        self._calls.add("fail all", error.message)

    def statistics(self) -> DriverStatistics:
        return DriverStatistics(1, 0, 0, 0, 0, 1, self.replay_estimate(), {})

    def replay_estimate(self) -> ReplayEstimate:
        return ReplayEstimate(step_s=0.2, pull_s=3.0)


class ScriptedWatch:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def watch(self, worker: WorkerInfo) -> None:
        self._calls.add("watch", worker.worker)

    def forget(self, worker: WorkerId) -> None:
        self._calls.add("forget", worker)


class ScriptedStarter:
    """Loads on every machine but those in `broken`, in 20 s that pass at once."""

    def __init__(self, calls: Calls) -> None:
        self.broken: set[NodeId] = set()
        self._calls = calls
        self._num_started = 100

    def start(self, starts: Sequence[Start]) -> list[Started | ShoalError]:
        return [self._start(start) for start in starts]

    def _start(self, start: Start) -> Started | ShoalError:
        self._calls.add("start", start.node, start.layers)
        if start.node in self.broken:
            return ClusterError("its disk is full")
        self._num_started += 1
        return Started(worker_on(start.node, start.layers, self._num_started), LIMITS, 20.0)

    def end(self, worker: WorkerInfo) -> None:
        self._calls.add("end", worker.worker)


class OneKeeper:
    """A pipeline of A and B on four machines; free: slices that each machine can still hold."""

    def __init__(self, *standbys: WorkerInfo, free: dict[NodeId, int], survive: int = 0) -> None:
        self.calls = Calls()
        self.starter = ScriptedStarter(self.calls)
        state = ClusterState(
            (ONE, TWO), (N0, N1, N2, N3), survive, {ONE: 1, TWO: 1}, lambda node, held: free.get(node, 0)
        )
        driver = cast(Driver, ScriptedDriver(self.calls))
        self.keeper = Keeper(
            state,
            driver,
            ScriptedWatch(self.calls),
            self.starter,
            journal_bytes=5,
            on_change=lambda: self.calls.add("changed"),
        )
        self.state = state
        self.keeper.begin_with(
            [(Start(w.node, w.layers), Started(w, LIMITS, 7.0)) for w in (A, B, *standbys)]
        )
        self.calls.made.clear()
        self.keeper.start()

    def settle(self, num_events: int = 1) -> None:
        """Wait until so many events have been handled since the last look."""
        self.calls.wait_until(lambda: len(self.calls.of("changed")) >= num_events)

    @property
    def stages(self) -> tuple[WorkerInfo, ...]:
        assert self.state.placement is not None
        return self.state.placement.stages

    def lose(self, worker: WorkerInfo, cause: str = "it was unplugged") -> None:
        self.keeper.lost(worker.worker, cause)

    def the_loss(self) -> Loss:
        (loss,) = self.state.losses
        return loss


@pytest.fixture
def make() -> Iterator[Callable[..., OneKeeper]]:
    made: list[OneKeeper] = []

    def make(*standbys: WorkerInfo, free: dict[NodeId, int] | None = None, survive: int = 0) -> OneKeeper:
        made.append(OneKeeper(*standbys, free=free or {}, survive=survive))
        return made[-1]

    yield make
    for one in made:
        one.keeper.stop()


Make = Callable[..., OneKeeper]

# ---------------------------------------------------------------- a loss


def test_a_standby_is_ended_before_a_stage_is_loaded_in_its_place(make: Make) -> None:
    standby = worker_on(N2, ONE, 2)
    one = make(standby)
    one.lose(B)
    one.calls.wait_until(lambda: bool(one.calls.of("place")) and len(one.calls.of("end")) == 2)
    assert [(stage.node, stage.layers) for stage in one.stages] == [(N0, ONE), (N2, TWO)]
    assert {worker for (worker,) in one.calls.of("end")} == {B.worker, standby.worker}
    assert one.calls.of("start") == [(N2, TWO)]
    assert one.calls.of("fail all") == []


def test_the_first_workers_are_watched_and_placed(make: Make) -> None:
    one = make(worker_on(N2, ONE, 2))
    assert one.keeper.is_covered
    assert one.stages == (A, B)
    placement = one.state.placement
    assert placement is not None
    assert placement.hot_standbys(0) == ("w2",)


def test_a_loss_is_told_to_all_and_logged_once_with_node_layers_and_cause(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(worker_on(N2, ONE, 2))
    one.lose(A)
    one.lose(A, "the watchdog and the driver both notice")
    one.settle(2)
    one.calls.wait_until(lambda: bool(one.calls.of("end")))
    for told in ("lose", "forget", "end"):
        assert one.calls.of(told) == [("w0",)], told
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [f"lost worker w0 on node n0 with layers {ONE}: it was unplugged"]
    assert one.the_loss().cause == "it was unplugged"


@pytest.mark.parametrize(
    ("standby", "rung", "stall_s"),
    [
        (worker_on(N2, ONE, 2), Rung.HOT, 0.2),
        (worker_on(N1, ONE, 2), Rung.WARM, 3.2),
        (None, Rung.LOAD, 23.2),
    ],
)
def test_the_rung_and_the_predicted_stall_are_noted_and_the_measured_one_when_streams_go_on(
    make: Make, standby: WorkerInfo | None, rung: Rung, stall_s: float
) -> None:
    one = make(*([] if standby is None else [standby]), free={N2: 1})
    one.lose(A)
    one.calls.wait_until(lambda: bool(one.calls.of("place")) and one.the_loss().end == "replaced")
    loss = one.the_loss()
    assert loss.rung is rung
    assert loss.predicted_stall_s == pytest.approx(stall_s)
    assert loss.stall_s is None
    assert one.stages[0].worker == ("w101" if standby is None else "w2")
    one.keeper.pipeline_event(Resumed(2, 1.5))
    one.calls.wait_until(lambda: loss.stall_s == 1.5)


def test_a_lost_standby_has_no_stage_to_be_replaced(make: Make) -> None:
    spare = worker_on(N2, ONE, 2)
    one = make(spare)
    one.lose(spare)
    one.settle()
    assert (one.the_loss().rung, one.the_loss().end) == (None, "carried no stage")
    assert one.stages == (A, B)


@pytest.mark.parametrize(
    ("cut", "cause"),
    [
        (LinkCut(A.worker, B.worker), "nothing that w0 sends reaches it"),
        (LinkCut(DRIVER, B.worker), "nothing that the head sends reaches it"),
        (LinkCut(B.worker, DRIVER), "nothing that it sends reaches the head"),
    ],
)
def test_a_cut_link_is_told_with_both_ends_and_its_receiver_is_replaced(
    make: Make, cut: LinkCut, cause: str
) -> None:
    one = make(worker_on(N2, TWO, 2))
    one.keeper.pipeline_event(cut)
    one.settle()
    assert (one.the_loss().worker, one.the_loss().cause) == (B, cause)


def test_a_silent_stage_is_a_warning_and_no_loss(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = make()
    one.keeper.pipeline_event(StageSilent(A.worker, 77))
    one.settle()
    assert one.state.losses == []
    assert "w0 is slow: it has had step 77 for long" in caplog.text


# ---------------------------------------------------------------- starts that fail


def test_what_cannot_be_loaded_on_one_machine_is_loaded_on_another(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(free={N2: 5, N3: 1})
    one.starter.broken = {N2}
    one.lose(A)
    one.calls.wait_until(lambda: bool(one.calls.of("place")))
    assert one.calls.of("start") == [("n2", ONE), ("n3", ONE)]
    assert one.stages[0].node == N3
    assert f"layers {ONE} could not be loaded on n2: its disk is full" in caplog.text
    assert one.calls.of("fail all") == []


def test_layers_that_no_machine_can_hold_end_every_stream_once_with_the_loss_as_cause(make: Make) -> None:
    one = make(free={N2: 1})
    one.starter.broken = {N2}
    one.lose(A)
    one.calls.wait_until(lambda: bool(one.calls.of("fail all")))
    one.settle(2)
    assert one.calls.of("fail all") == [(f"Node n0 (layers {ONE}) was lost: it was unplugged.",)]
    assert one.the_loss().end == "no machine was left that could hold the layers"
    assert not one.keeper.is_covered
    one.keeper.restore_redundancy()  # another look at the same facts
    one.settle(3)
    assert len(one.calls.of("fail all")) == 1


def test_what_could_not_be_loaded_is_tried_again_later_and_streams_are_taken_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Callable[[], None]] = []

    class Timer:
        """Runs when this test says so."""

        def __init__(self, after_s: float, run: Callable[[], None]) -> None:
            assert after_s == keeper_module.START_AGAIN_S
            self._run = run

        def start(self) -> None:
            timers.append(self._run)

    monkeypatch.setattr(keeper_module.threading, "Timer", Timer)
    one = make(free={N2: 1})
    one.starter.broken = {N2}
    one.lose(A)
    one.calls.wait_until(lambda: bool(one.calls.of("fail all")))
    one.starter.broken = set()
    assert one.calls.of("start") == [("n2", ONE)]
    (try_again,) = timers
    try_again()
    one.calls.wait_until(lambda: bool(one.calls.of("place")))
    assert one.calls.of("start") == [("n2", ONE)] * 2
    one.calls.wait_until(lambda: one.keeper.is_covered)


# ---------------------------------------------------------------- redundancy


def test_standbys_are_loaded_only_when_that_is_wanted_and_one_at_a_time(make: Make) -> None:
    one = make(free={N2: 9, N3: 8}, survive=1)
    one.keeper.pipeline_event(StageSilent(A.worker, 1))
    one.settle()
    assert one.calls.of("start") == []
    one.keeper.restore_redundancy()
    one.calls.wait_until(lambda: len(one.calls.of("place")) == 2)
    assert sorted(layers for _, layers in one.calls.of("start")) == [ONE, TWO]  # type: ignore[type-var]
    assert one.stages == (A, B)


# ---------------------------------------------------------------- polite leaves


def test_a_node_that_is_not_here_cannot_leave(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"no node 'n9' here.*n0, n1, n2, n3"):
        make().keeper.leave(NodeId("n9"))


def test_a_stage_is_handed_over_once_and_its_owner_goes_when_that_is_done(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    successor = worker_on(N2, ONE, 2)
    one = make(successor)
    one.keeper.leave(N0)
    one.keeper.restore_redundancy()  # another look at the same facts
    one.settle(2)
    assert one.calls.of("hand over") == [("w0", "w2")]
    assert (one.stages, one.calls.of("end")) == ((A, B), [])
    one.keeper.pipeline_event(HandedOver(A.worker, successor.worker, is_complete=True))
    one.calls.wait_until(lambda: bool(one.calls.of("end")))
    one.settle(3)
    assert one.stages == (successor, B)
    for told in ("lose", "forget", "end"):
        assert one.calls.of(told) == [("w0",)], told
    assert one.state.losses == []
    assert "did not hand everything over" not in caplog.text


def test_an_incomplete_hand_over_is_said_and_the_route_changes_all_the_same(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    successor = worker_on(N2, ONE, 2)
    one = make(successor)
    one.keeper.leave(N0)
    one.keeper.pipeline_event(HandedOver(A.worker, successor.worker, is_complete=False))
    one.settle(2)
    assert one.stages == (successor, B)
    assert "w0 did not hand everything over; w2 pulls the rest" in caplog.text


def test_a_standby_on_a_machine_that_leaves_just_goes(make: Make) -> None:
    spare = worker_on(N2, ONE, 2)
    one = make(spare)
    one.keeper.leave(N2)
    one.calls.wait_until(lambda: bool(one.calls.of("end")))
    one.settle()
    assert one.calls.of("end") == [("w2",)]
    assert one.calls.of("hand over") == []
    assert one.state.live == (A, B)


def test_one_that_leaves_and_dies_before_its_sessions_are_over_is_an_ordinary_loss(make: Make) -> None:
    successor = worker_on(N2, ONE, 2)
    one = make(successor)
    one.keeper.leave(N0)
    one.lose(A)
    one.settle(2)
    assert one.stages == (successor, B)
    assert one.the_loss().rung is Rung.HOT


def test_after_stop_nothing_is_decided(make: Make) -> None:
    one = make(worker_on(N2, ONE, 2))
    one.keeper.stop()
    one.lose(A)
    assert not one.keeper._thread.is_alive()
    assert (one.calls.made, one.state.live[:1]) == ([], (A,))
