"""A run as a Chrome trace (trace event format, JSON): opens in chrome://tracing, Perfetto, Speedscope.

One process a cell, one thread a machine: what each computed and when; requests as asynchronous
spans; machines that left or came as instants. Times in the format are microseconds: whole ones here, so that
a batch ends exactly where the next begins. With fractions viewers see the two overlap and mix them up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shoal.core.units import MEGA
from shoal.simulator.cell_hardware import Batch
from shoal.simulator.cell_plan import CellPlan
from shoal.simulator.fine import FineResult, MachineEvent
from shoal.simulator.records import RequestRecord

Event = dict[str, Any]

DOOR: Final = 0  # process of the requests; cells follow


def trace_of(result: FineResult) -> dict[str, Any]:
    """The whole file's content."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"scenario": result.scenario.name, "batches": len(result.batches)},
        "traceEvents": list(_events(result)),
    }


def _events(result: FineResult) -> Iterator[Event]:
    yield _name("process_name", DOOR, 0, "requests")
    threads: dict[str, tuple[int, int]] = {}
    for number, plan in enumerate(result.plans, DOOR + 1):
        yield _name("process_name", number, 0, f"cell {number - 1}")
        for thread, node in enumerate(plan.machines):
            threads[node] = number, thread
            yield _name("thread_name", number, thread, f"{node} ({plan.machines[node].title})")
    for batch in result.batches:
        yield _batch(batch, *threads[batch[0].node], result.plans)
    for request in result.requests:
        yield from _request(request, result.elapsed_s)
    for event in result.machine_events:
        yield _machine(event, *threads[event.machine])


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _batch(batch: Batch, process: int, thread: int, plans: list[CellPlan]) -> Event:
    worker, num_sequences, num_tokens, start_s, seconds = batch
    kind = "decode" if num_tokens == num_sequences else "prefill"
    return {
        "ph": "X",
        "name": f"{kind} {num_tokens}",
        "cat": kind,
        "pid": process,
        "tid": thread,
        "ts": _us(start_s),
        "dur": _us(start_s + seconds) - _us(start_s),
        "args": {
            "layers": str(worker.layers),
            "stage": plans[process - DOOR - 1].ranges.index(worker.layers),
            "sequences": num_sequences,
            "worker": worker.worker,
        },
    }


def _request(request: RequestRecord, elapsed_s: float) -> Iterator[Event]:
    about = {
        "cat": "request",
        "id": request.number,
        "name": f"request {request.number}",
        "pid": DOOR,
        "tid": 0,
    }
    facts = {
        "prompt_tokens": request.prompt_tokens,
        "tokens": request.tokens,
        "cell": request.cell,
        "outcome": request.outcome.value,
        "error": request.error,
    }
    yield {"ph": "b", "ts": _us(request.at_s), "args": facts, **about}
    if request.first_s is not None:
        yield {"ph": "n", "ts": _us(request.first_s), **about, "args": {"what": "first token"}}
    end_s = elapsed_s if request.end_s is None else request.end_s
    yield {"ph": "e", "ts": _us(max(end_s, request.at_s)), **about}


def _machine(event: MachineEvent, process: int, thread: int) -> Event:
    return {
        "ph": "i",
        "s": "t",
        "name": f"{event.machine} {event.cause}",
        "cat": "machine",
        "pid": process,
        "tid": thread,
        "ts": _us(event.at_s),
    }


def _us(seconds: float) -> int:
    return round(seconds * MEGA)
