"""Bringing a model up and keeping its gateway open, until somebody says stop."""

from __future__ import annotations

import asyncio
import time

from rich.console import Console

from shoal.commands.start_progress import StartProgress
from shoal.commands.stop_signals import StopSignals
from shoal.control.controller import Controller
from shoal.control.start_plan import ServeConfig, StartPhase
from shoal.core.garbage import keep_for_good
from shoal.core.specs import LayerRange
from shoal.gateway.app import create_app
from shoal.gateway.listen_address import DEFAULT_PORT
from shoal.gateway.server import GatewayServer, check_can_listen
from shoal.gateway.service import ModelService
from shoal.pipeline.chat_template import ChatTemplate


def run(config: ServeConfig, host: str, port: int, notes: Console) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    All that was started has ended when this returns or raises. Raises ShoalError.
    """
    controller = Controller(config)
    with StopSignals(controller.end_processes) as signals:
        try:
            # Before minutes are spent on loading.
            check_can_listen(host, port)
            _start(controller, signals, notes)
            asyncio.run(_serve(controller, signals, host, port, notes))
        except KeyboardInterrupt:
            # Not only StopRequested: Ray turns what is raised during its calls into a plain one.
            if signals.first is None:
                raise
        finally:
            signals.unwind()
            controller.stop()
        notes.print("Stopped; nothing is left running.")
        return 0 if controller.has_served or signals.first is None else 128 + signals.first


def _start(controller: Controller, signals: StopSignals, notes: Console) -> None:
    began_s = time.monotonic()
    with StartProgress(notes) as progress:

        def report(phase: StartPhase, num_done: int, num_total: int) -> None:
            signals.raise_if_requested()
            progress.report(phase, num_done, num_total)

        controller.start(report)
    plan = controller.plan
    slices = ", ".join(
        f"{node} {layers}" for node, layers in zip(plan.nodes, plan.local_ranges, strict=False)
    )
    if controller.join_address is not None:
        notes.print(_how_to_join(controller.join_address, plan.awaiting), markup=False, soft_wrap=True)
    if not slices:
        return
    notes.print(
        f"{plan.model_id} is up after {time.monotonic() - began_s:.1f} s: {slices}.",
        markup=False,
        soft_wrap=True,
    )


async def _serve(controller: Controller, signals: StopSignals, host: str, port: int, notes: Console) -> None:
    template = ChatTemplate(controller.tokenizer.chat_template, controller.tokenizer)
    service = ModelService(
        model_id=controller.plan.model_id,
        created=int(time.time()),
        n_ctx=controller.plan.n_ctx,
        n_vocab=controller.tokenizer.n_vocab,
        generator=controller.driver,
        encode_chat=template.encode,
        encode_text=lambda text: controller.tokenizer.encode(text, add_special=True, parse_special=False),
        invariant=controller.plan.invariant,
    )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    server = GatewayServer(create_app(service, controller), host, port)
    with signals.notifying(lambda: _wake(loop, stopping)):
        await server.start()
        keep_for_good()
        try:
            notes.print(_welcome(server, service.model_id), markup=False, soft_wrap=True)
            await stopping.wait()
            notes.print("Stopping ...")
        finally:
            await server.stop()


def _how_to_join(address: str, awaiting: tuple[LayerRange, ...]) -> str:
    waits = f"Layers {', '.join(map(str, awaiting))} wait for machines that join.\n" if awaiting else ""
    return (
        f"{waits}Add a machine: run `shoal token create` here, and on the other machine\n"
        f"  shoal join {address} --token TOKEN"
    )


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


def _welcome(server: GatewayServer, model_id: str) -> str:
    body = f'{{"model": "{model_id}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    url = f" --base-url {server.url}" if server.port != DEFAULT_PORT else ""
    return (
        f"\nOpenAI API:  {server.url}/v1\n\n"
        f"curl -N {server.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n\n"
        f"Or talk to it:  shoal chat{url}     See it at work:  shoal status{url}     End it:  Ctrl-C\n"
    )
