"""Workers that are stopped, or fail, at an awkward moment leave nothing behind and free nothing too soon."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from shoal.core.errors import ClusterError, ConfigError
from shoal.worker import slice_worker
from shoal.worker.slice_worker import SliceWorker
from tests.unit.worker.test_slice_worker import DEADLINE_S, Gate, Head

THREADS = ("shoal-io", "shoal-compute", "shoal-control")


class Engines:
    """Notes when engines are closed, and may hold up the next one that is loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loading, self.may_load = threading.Event(), threading.Event()
        self.may_load.set()
        self.num_closed = 0
        self._load = slice_worker.load_engine
        monkeypatch.setattr(slice_worker, "load_engine", self.load)

    def load(self, *args: object) -> object:
        self.loading.set()
        assert self.may_load.wait(DEADLINE_S)
        engine = self._load(*args)  # type: ignore[arg-type]
        close_engine = engine.close

        def close() -> None:
            self.num_closed += 1
            close_engine()

        engine.close = close  # type: ignore[method-assign]
        return engine


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(monkeypatch)


def _running_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in THREADS]


def test_a_worker_that_is_stopped_while_it_loads_does_not_come_up(engines: Engines) -> None:
    head = Head()
    engines.may_load.clear()
    errors: list[ClusterError] = []

    def start() -> None:
        try:
            head.worker.start()
        except ClusterError as error:
            errors.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    assert engines.loading.wait(DEADLINE_S)
    head.worker.stop()
    engines.may_load.set()
    starting.join(DEADLINE_S)
    assert [error.message for error in errors] == ["Worker w0 was stopped while it loaded."]
    assert (engines.num_closed, _running_threads()) == (1, [])
    head.close()


def test_an_engine_is_not_freed_under_a_batch_that_is_still_being_computed(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_worker, "STOP_DEADLINE_S", 0.1)
    head = Head()
    head.start()
    gate = Gate(head.worker)
    head.send_step()
    assert gate.entered.wait(DEADLINE_S)
    head.worker.stop()
    assert engines.num_closed == 0
    gate.go_on.set()
    for thread in head.worker._threads:
        thread.join(DEADLINE_S)
    assert (head.exits, _running_threads()) == ([], [])
    head.worker._channel.close()
    head.worker._secure.close()
    head.close()


def test_a_start_that_fails_leaves_neither_engine_nor_sockets_nor_threads(engines: Engines) -> None:
    head = Head()
    elsewhere = replace(head.worker._config, listen_address="203.0.113.7")
    worker = SliceWorker(elsewhere, end_process=head.exits.append)
    with pytest.raises(ConfigError):
        worker.start()
    assert (engines.num_closed, _running_threads()) == (1, [])
    assert worker._secure.context.closed
    worker.stop()
    head.close()
