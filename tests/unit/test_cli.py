"""The `shoal` command as a whole: help, version, and how errors end it."""

from __future__ import annotations

import subprocess
import sys

from shoal import __version__


def shoal(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_command_and_shows_examples() -> None:
    done = shoal("--help")
    assert done.returncode == 0
    for part in ("serve", "chat", "status", "inspect", "slice", "shoal serve qwen2.5-coder-1.5b"):
        assert part in done.stdout


def test_version_is_the_packages() -> None:
    assert shoal("--version").stdout == f"shoal {__version__}\n"


def test_a_wrong_value_is_one_line_with_a_next_step_and_status_2() -> None:
    done = shoal("inspect", "no-such-model")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("shoal: No model is known as 'no-such-model'.")
    assert done.stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_status_1() -> None:
    done = shoal("status", "--base-url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_help_does_not_load_the_cluster_or_the_engine() -> None:
    heavy = ("ray", "llama_cpp", "fastapi", "zmq")
    code = f"import sys, shoal.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
