"""The first signal stops, wherever the main thread is; a second Ctrl-C ends at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shoal.commands.stop_signals import StopRequested, StopSignals

TWICE = """
import os, signal
from shoal.commands.stop_signals import StopRequested, StopSignals
with StopSignals(lambda: print("ended at once", flush=True)):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except StopRequested:
        os.kill(os.getpid(), signal.SIGTERM)
        print("still stopping", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
    print("never printed", flush=True)
"""


def send_to_self(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def never() -> None:
    raise AssertionError("nobody asked to end at once")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_starting_is_raised_where_the_work_is(number: signal.Signals) -> None:
    with StopSignals(never) as signals:
        with pytest.raises(StopRequested):
            send_to_self(number)
        assert signals.first == number
        with pytest.raises(StopRequested):
            signals.raise_if_requested()


def test_a_signal_while_serving_is_handed_over_once() -> None:
    told: list[str] = []
    with StopSignals(never) as signals, signals.notifying(lambda: told.append("stop")):
        send_to_self(signal.SIGTERM)
        send_to_self(signal.SIGTERM)
    assert told == ["stop"]


def test_a_signal_while_stopping_does_not_interrupt_it() -> None:
    with StopSignals(never) as signals:
        signals.unwind()
        send_to_self(signal.SIGTERM)
        assert signals.first == signal.SIGTERM


def test_the_handlers_that_were_there_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(never):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.splitlines() == ["still stopping", "ended at once"]
    assert done.returncode == 130


def test_a_signal_that_is_postponed_is_noted_and_the_next_start_is_interrupted_again() -> None:
    with StopSignals(never) as signals:
        with signals.postponing():
            send_to_self(signal.SIGTERM)
        assert signals.first == signal.SIGTERM
        with pytest.raises(StopRequested):
            signals.raise_if_requested()
    with StopSignals(never) as signals:
        with signals.postponing():
            pass
        with pytest.raises(StopRequested):
            send_to_self(signal.SIGTERM)
