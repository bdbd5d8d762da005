"""The change of the route: who is told of what, in which order, and when it is in force."""

from __future__ import annotations

from shoal.core.placement import DRIVER, Epoch, Placement, Standby, WorkerId
from shoal.pipeline.route import TELL_AGAIN_S, Route, RouteChange
from shoal.pipeline.scheduler import Scheduler
from shoal.wire.messages import Peers
from tests.unit.pipeline.one_driver import DRIVER_ENDPOINT, info, placement


def _change(placement: Placement) -> RouteChange:
    scheduler = Scheduler(num_stages=len(placement.stages), chunk_tokens=8, max_batch_tokens=8)
    return RouteChange(Route(placement, scheduler), DRIVER_ENDPOINT)


def _told(change: RouteChange) -> dict[WorkerId, Peers]:
    return dict(change.messages(0.0))


def test_standbys_are_told_first_and_stages_when_all_standbys_have_confirmed() -> None:
    change = _change(placement(1, hot={"h0": 0}, warm={"x1": 1}))
    assert list(_told(change)) == ["h0", "x1"]
    assert change.confirm("h0") is False
    assert list(_told(change)) == ["x1"]
    assert change.confirm("x1") is True
    assert list(_told(change)) == ["w0", "w1", "w2"]


def test_it_is_in_force_when_everybody_has_confirmed_in_whatever_order() -> None:
    change = _change(placement(1, hot={"h0": 0}))
    for worker in ("w2", "w0", "stranger"):
        assert change.confirm(worker) is False
    assert change.confirm("h0") is True
    assert list(_told(change)) == ["w1"]
    assert not change.is_confirmed
    assert change.confirm("w1") is False
    assert change.is_confirmed
    assert _told(change) == {}


def test_who_has_not_confirmed_is_told_again_after_a_while() -> None:
    change = _change(placement(1))
    change.confirm("w1")
    assert [worker for worker, _ in change.messages(3.0)] == ["w0", "w2"]
    assert change.tell_again_s == 3.0 + TELL_AGAIN_S


def test_each_is_told_of_everybody_of_its_predecessor_and_of_whom_it_feeds() -> None:
    successor = Standby(info("s1", 1), is_hot=True, awaits_states=True)
    plain = placement(5, hot={"h0": 0, "h2": 2}, warm={"x2": 2})
    change = _change(Placement(Epoch(5), plain.stages, (*plain.standbys, successor)))
    told = _told(change)
    for standby in ("h0", "h2", "x2", "s1"):
        change.confirm(standby)
    told |= _told(change)
    everybody = [DRIVER, "w0", "w1", "w2", "h0", "h2", "x2", "s1"]
    assert all([peer.worker for peer in peers.peers] == everybody for peers in told.values())
    assert {peers.epoch for peers in told.values()} == {5}
    assert {worker: peers.predecessor for worker, peers in told.items()} == {
        "w0": DRIVER, "h0": DRIVER, "w1": "w0", "s1": "w0", "w2": "w1", "h2": "w1", "x2": "w1",
    }  # fmt: skip
    feeds = {worker: peers.feeds for worker, peers in told.items() if peers.feeds}
    assert feeds == {"w0": ("s1",), "w1": ("h2",)}
    assert [worker for worker, peers in told.items() if peers.awaits_states] == ["s1"]


def test_the_driver_feeds_the_hot_standbys_of_the_first_stage() -> None:
    route = _change(placement(1, hot={"h0": 0, "h1": 1}, warm={"x0": 0})).route
    assert route.first_standbys == ("h0",)
    assert (route.stages, route.after_first) == (("w0", "w1", "w2"), ("w1", "w2", DRIVER))
