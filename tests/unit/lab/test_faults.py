"""Whom faults may be done to, and which there are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from unittest.mock import create_autospec

import psutil
import pytest

from shoal.core.errors import ConfigError
from shoal.core.status import WorkerStatus
from shoal.gateway.client import ApiClient
from shoal.lab.faults import FaultKind, Victim, parse_kinds
from tests.support.processes import wait_until
from tests.unit.gateway.running_gateway import FixedView


def worker_of(pid: int) -> WorkerStatus:
    return replace(FixedView().current.workers[0], pid=pid)


def test_kinds_are_listed_with_commas() -> None:
    assert parse_kinds("stop, kill") == (FaultKind.STOP, FaultKind.KILL)


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'burn'.*kill, stop, leave"):
        parse_kinds("kill,burn")


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="no worker of Shoal"):
        Victim(worker_of(os.getpid()))


def test_a_pid_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no worker of Shoal"):
        Victim(worker_of(2**22 + 1))


def test_a_worker_is_frozen_thawed_and_killed_and_a_dead_one_troubles_nobody() -> None:
    client = create_autospec(ApiClient)
    command = [sys.executable, "-c", "import time; time.sleep(30)", "ray::WorkerAgent"]
    with subprocess.Popen(command) as process:
        try:
            seen = psutil.Process(process.pid)
            wait_until(lambda: "ray::WorkerAgent" in seen.cmdline(), deadline_s=10, what="its beginning")
            victim = Victim(worker_of(process.pid))
            victim.strike(FaultKind.STOP, client)
            wait_until(lambda: seen.status() == psutil.STATUS_STOPPED, deadline_s=10, what="frozen")
            victim.thaw()
            wait_until(lambda: seen.status() != psutil.STATUS_STOPPED, deadline_s=10, what="thawed")
            victim.strike(FaultKind.KILL, client)
            process.wait(10)
            victim.strike(FaultKind.KILL, client)
            victim.thaw()
        finally:
            process.kill()


def test_a_leave_is_asked_of_the_head() -> None:
    client = create_autospec(ApiClient)
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "ray::WorkerAgent"], stdin=subprocess.PIPE
    ) as process:
        seen = psutil.Process(process.pid)
        wait_until(lambda: "ray::WorkerAgent" in seen.cmdline(), deadline_s=10, what="its beginning")
        Victim(worker_of(process.pid)).strike(FaultKind.LEAVE, client)
        process.kill()
    client.leave.assert_called_once_with("node-1")
