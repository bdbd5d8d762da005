"""In which order the keeper does things: streams go on first, standbys are loaded then."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from unittest.mock import create_autospec

import pytest

from shoal.control.cluster_state import ClusterState, Loss
from shoal.control.keeper import Keeper, Started, Watch
from shoal.control.recovery import Start
from shoal.core.errors import ShoalError
from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.interface import EngineLimits
from shoal.pipeline.driver import Driver
from shoal.pipeline.protocol import Resumed
from shoal.pipeline.stage_statistics import ReplayEstimate
from tests.support.processes import wait_until

LAYERS = LayerRange(0, 4)
NODES = [NodeId(name) for name in ("n0", "n1", "n2")]
LIMITS = EngineLimits(
    cells=100, max_sequences=1, max_batch_tokens=8, row_width_in=8, row_width_out=8, mixes_chunks=True,
    can_trim=True, state_bytes=0,
)  # fmt: skip


class Loading:
    """A starter whose workers load as soon as a test lets them."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[Start] = queue.SimpleQueue()

    def start(self, starts: Sequence[Start]) -> list[Started | ShoalError]:
        for start in starts:
            self.asked.put(start)
        return [Started(worker(start.node), LIMITS, 1.0) for start in starts]

    def end(self, worker: WorkerInfo) -> None:
        pass


def worker(node: NodeId) -> WorkerInfo:
    return WorkerInfo(WorkerId(f"{node}-w"), node, LAYERS, Endpoint("127.0.0.1", 1, "key"), 2, 3)


class Kept:
    """A keeper of one stage on n0 with a standby on n1; n2 is free."""

    def __init__(self, num_sessions: int) -> None:
        self.driver = create_autospec(Driver, instance=True)
        self.driver.statistics.return_value.sessions_active = num_sessions
        self.driver.replay_estimate.return_value = ReplayEstimate(0.0, 0.0)
        self.starter = Loading()
        state = ClusterState((LAYERS,), NODES, 1, {LAYERS: 1}, free_bytes=lambda node, held: 10)
        watch = create_autospec(Watch, instance=True)
        self.keeper = Keeper(state, self.driver, watch, self.starter, journal_bytes=1)
        loaded = [(Start(node, LAYERS), Started(worker(node), LIMITS, 1.0)) for node in NODES[:2]]
        self.keeper.begin_with(loaded)
        self.keeper.restore_redundancy()
        self.keeper.start()

    @property
    def losses(self) -> list[Loss]:
        return self.keeper.state.losses

    def lose_the_stage(self) -> Loss:
        self.keeper.lost(worker(NODES[0]).worker, "it was unplugged")
        wait_until(lambda: any(loss.end == "replaced" for loss in self.losses), deadline_s=5, what="replaced")
        return self.losses[-1]

    def resume(self, stall_s: float) -> None:
        placement = self.keeper.state.placement
        assert placement is not None
        self.keeper.pipeline_event(Resumed(placement.epoch, stall_s))


@pytest.fixture(params=[1])
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    made = Kept(request.param)
    yield made
    made.keeper.stop()


def test_a_standby_is_loaded_only_when_streams_have_gone_on(kept: Kept) -> None:
    loss = kept.lose_the_stage()
    kept.keeper.stop()
    assert kept.starter.asked.empty()
    assert loss.stall_s is None


def test_when_streams_go_on_the_standby_is_loaded(kept: Kept) -> None:
    loss = kept.lose_the_stage()
    kept.resume(0.5)
    assert kept.starter.asked.get(timeout=5).layers == LAYERS
    assert loss.stall_s == 0.5


@pytest.mark.parametrize("kept", [0], indirect=True)
def test_where_no_stream_waits_the_standby_is_loaded_at_once_and_nothing_stalled(kept: Kept) -> None:
    loss = kept.lose_the_stage()
    assert kept.starter.asked.get(timeout=5).layers == LAYERS
    kept.resume(9.0)
    kept.keeper.stop()
    assert loss.stall_s is None
