"""Being a part of a head's cluster, until somebody says stop or the head ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from shoal.commands.stop_signals import StopSignals
from shoal.control.join_link import Happening
from shoal.control.joined_machine import JoinConfig, JoinedMachine, TryAgain, is_final
from shoal.wire.join_messages import Closing, Left

POLL_S = 0.2
LEAVE_DEADLINE_S = 60.0
AGAIN_S = 1.0
GIVE_UP_S = 600.0


def run(config: JoinConfig, notes: Console) -> int:
    """Join and stay until SIGTERM or SIGINT, or until the head ends; returns the exit status.

    All that was started has ended when this returns or raises. Raises ShoalError.
    """
    machine = JoinedMachine(config, _tell_progress(notes))
    with StopSignals(machine.end_processes) as signals:
        try:
            _stay(machine, signals, notes)
        except KeyboardInterrupt:
            if signals.first is None:
                raise
            notes.print("Stopped before it had joined.")
            return 128 + signals.first
        finally:
            signals.unwind()
            machine.end()
        notes.print("Nothing is left running here.")
        return 0


def _stay(machine: JoinedMachine, signals: StopSignals, notes: Console) -> None:
    """Join, and again whenever the head was lost; return when this machine has left or the head ended."""
    has_been_in = False
    while True:
        name = _join(machine, signals, notes, has_been_in=has_been_in)
        has_been_in = True
        notes.print(f"Joined as {name}. Ctrl-C hands over what it carries, and leaves.")
        happening = _until_something_happens(machine, signals)
        if happening is None:
            _leave(machine, signals, notes)
            return
        if isinstance(happening, Closing | Left):
            notes.print("The head has ended." if isinstance(happening, Closing) else "The head let it go.")
            return
        error = is_final(happening)
        if error is not None:
            raise error
        notes.print("[yellow]The head was lost, or took this machine for lost. Joining again ...")
        machine.end()


def _join(machine: JoinedMachine, signals: StopSignals, notes: Console, *, has_been_in: bool) -> str:
    """Try for a while where another try makes sense: the head may be starting, or gone for a moment."""
    give_up_s = time.monotonic() + GIVE_UP_S
    said = ""
    while True:
        signals.raise_if_requested()
        try:
            return machine.join()
        except TryAgain as error:
            machine.end()
            # At first, an address without a head is more likely wrong than early.
            if time.monotonic() > give_up_s or not (has_been_in or error.is_starting):
                raise
            if error.message != said:
                notes.print(f"{error.message} Trying again.", markup=False)
                said = error.message
        time.sleep(AGAIN_S)


def _until_something_happens(machine: JoinedMachine, signals: StopSignals) -> Happening | None:
    """None where a person asked to stop."""
    with signals.postponing():
        while signals.first is None:
            happening = machine.wait(POLL_S)
            if happening is not None:
                return happening
    return None


def _leave(machine: JoinedMachine, signals: StopSignals, notes: Console) -> None:
    notes.print("Handing over what it carries ... Ctrl-C again ends at once.")
    machine.ask_to_leave()
    give_up_s = time.monotonic() + LEAVE_DEADLINE_S
    while time.monotonic() < give_up_s:
        if machine.wait(POLL_S) is not None:  # whatever it is: the head counts on nothing here any more
            notes.print("Left.")
            return
    notes.print("[yellow]No other machine could take over in time; leaving anyway.")


def _tell_progress(notes: Console) -> Callable[[str, int, int], None]:
    def tell(name: str, num_done: int, num_bytes: int) -> None:
        if num_done == num_bytes:
            notes.print(f"Fetched {name}, {num_bytes / 2**20:.0f} MiB.", markup=False, soft_wrap=True)

    return tell
