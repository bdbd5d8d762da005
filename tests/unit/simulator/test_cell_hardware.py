"""A cell's machines: workers on one machine take turns, standbys are counted apart."""

from __future__ import annotations

import pytest

from shoal.core.placement import NodeId, WorkerId, WorkerInfo
from shoal.engine.interface import Chunk
from shoal.simulator.cell_hardware import Batch, CellHardware
from shoal.simulator.cell_plan import deal_machines, plan_cell
from shoal.simulator.virtual_head import NOWHERE
from tests.unit.simulator.toy_scenarios import LAYER_S, scenario


@pytest.fixture
def wanted() -> tuple[CellHardware, list[WorkerInfo], list[Batch]]:
    plan = plan_cell(scenario(), deal_machines(scenario())[0], 0)
    nodes = list(plan.machines)
    workers = [
        WorkerInfo(
            WorkerId(f"w{number}"), NodeId(nodes[0] if number < 2 else nodes[1]), layers, NOWHERE, 0, 0
        )
        for number, layers in enumerate(plan.ranges[:3])
    ]
    batches: list[Batch] = []
    carries = {workers[0].worker, workers[2].worker}
    hardware = CellHardware(plan, lambda: 1.0, lambda worker: worker.worker in carries, batches.append)
    return hardware, workers, batches


def test_workers_on_one_machine_take_turns_on_its_memory_and_others_do_not_wait(
    wanted: tuple[CellHardware, list[WorkerInfo], list[Batch]],
) -> None:
    hardware, (first, second, elsewhere), batches = wanted
    chunk = (Chunk(0, 0, (1,)),)
    assert hardware.batch_s(first, chunk) == pytest.approx(LAYER_S)
    assert hardware.batch_s(second, chunk) == pytest.approx(2 * LAYER_S)
    assert hardware.batch_s(elsewhere, chunk) == pytest.approx(LAYER_S)
    assert [batch[3] for batch in batches] == [1.0, pytest.approx(1.0 + LAYER_S), 1.0]


def test_what_a_standby_repeats_is_no_work_of_the_stages(
    wanted: tuple[CellHardware, list[WorkerInfo], list[Batch]],
) -> None:
    hardware, (first, standby, _), _ = wanted
    for worker in (first, standby):
        hardware.batch_s(worker, (Chunk(0, 0, (1,)),))
    assert hardware.compute_s == pytest.approx(LAYER_S)
    assert hardware.standby_busy_s == pytest.approx(LAYER_S)
