"""`shoal chat` against Shoal's own gateway and against endpoints that answer badly."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from shoal.commands.chat import Conversation, chat, key_from
from shoal.core.errors import ConfigError, NodeLost, Overloaded
from shoal.gateway.client import ApiClient, ClientError, endpoint_at
from tests.unit.commands.canned_server import CannedServer
from tests.unit.gateway.running_gateway import DEADLINE_S, MODEL, Gate, RunningGateway

_NO_KEYS = {"SHOAL_API_KEY": None, "OPENAI_API_KEY": None, "SHOAL_URL": None}
_MODELS = b'{"data": [{"id": "m-1"}, {"id": "m-2"}]}'


def run(*arguments: str, stdin: str = "", **environment: str) -> Any:
    app = typer.Typer()
    app.command()(chat)
    return CliRunner().invoke(app, arguments, input=stdin, env={**_NO_KEYS, **environment})


@contextmanager
def conversation_with(url: str, waits_s: list[float] | None = None) -> Iterator[Conversation]:
    with ApiClient(endpoint_at(url)) as client:
        sleep = (waits_s if waits_s is not None else []).append
        yield Conversation(client, MODEL, Console(quiet=True), Console(quiet=True), sleep=sleep)


def sse(*payloads: str) -> bytes:
    return b"".join(b"data: %s\n\n" % payload.encode() for payload in payloads)


def test_a_prompt_argument_is_answered_once(gateway: RunningGateway) -> None:
    result = run("How", "are you?", "--base-url", gateway.url)
    assert result.stdout == "Hello world\n"
    assert result.exit_code == 0
    assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "How are you?"


def test_piped_text_is_answered_once_from_the_url_of_the_environment(gateway: RunningGateway) -> None:
    result = run(stdin="From a pipe\n", SHOAL_URL=gateway.url + "/v1/")
    assert result.stdout == "Hello world\n"
    assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "From a pipe"


def test_an_empty_pipe_is_a_usage_error(gateway: RunningGateway) -> None:
    result = run(stdin=" \n", SHOAL_URL=gateway.url)
    assert result.exit_code == 2
    assert "no prompt" in result.stderr


def test_options_become_fields_of_the_request(gateway: RunningGateway) -> None:
    run("Hi", "--base-url", gateway.url, "--max-tokens", "7", "--temperature", "0", "--system", "Be brief. ")
    assert gateway.last_request.max_tokens == 7
    assert gateway.last_request.sampling.temperature == 0
    assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "Be brief. Hi"


def test_nothing_running_says_how_to_start_it(dead_url: str) -> None:
    result = run("Hi", "--base-url", dead_url)
    assert result.exit_code == 1
    assert "shoal serve MODEL" in result.stderr
    assert dead_url in result.stderr


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8000", "http://", "http://[::1", "x y"])
def test_a_bad_url_is_a_usage_error(url: str) -> None:
    result = run("Hi", "--base-url", url)
    assert result.exit_code == 2
    assert "base URL" in result.stderr


def test_an_unknown_model_lists_the_served_ones(gateway: RunningGateway) -> None:
    result = run("Hi", "--base-url", gateway.url, "--model", "other")
    assert result.exit_code == 1
    assert f"Choose one with --model: {MODEL}." in result.stderr


def test_a_refused_key_names_the_variable_and_never_the_key(canned: CannedServer) -> None:
    canned.reply("/v1/models", 401, b'{"error": {"message": "Incorrect API key."}}')
    result = run("Hi", "--base-url", canned.url, SHOAL_API_KEY="sk-secret")
    assert result.exit_code == 1
    assert "SHOAL_API_KEY" in result.stderr
    assert "sk-secret" not in result.output
    assert canned.keys_seen == ["Bearer sk-secret"]


def test_keys_are_chosen_by_where_they_go() -> None:
    both = {"SHOAL_API_KEY": "shoal", "OPENAI_API_KEY": "openai"}
    assert key_from(both, "https://x/v1") == "shoal"
    assert key_from({"OPENAI_API_KEY": "openai"}, "https://x/v1") == "openai"
    assert key_from({"OPENAI_API_KEY": "openai"}, None) is None
    assert key_from({"SHOAL_API_KEY": ""}, None) is None


def test_a_key_with_a_line_end_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        key_from({"SHOAL_API_KEY": "sk-secret\n"}, None)
    assert "sk-secret" not in str(caught.value)


def test_an_endpoint_does_not_show_its_key() -> None:
    assert "sk-secret" not in repr(endpoint_at("http://x", key="sk-secret"))


def test_other_endpoints_and_a_body_without_finish_are_understood(canned: CannedServer) -> None:
    canned.reply("/api/models", 200, _MODELS)
    canned.reply(
        "/api/chat/completions",
        200,
        b": comment\n\nevent: x\n"
        + sse('{"choices": [{"delta": {"content": "Hi"}}]}', '{"choices": []}', "[DONE]"),
    )
    result = run("Hello", "--base-url", canned.url + "/api")
    assert (result.stdout, result.exit_code) == ("Hi\n", 0)


def test_an_answer_that_stops_without_an_end_is_a_failure(canned: CannedServer) -> None:
    canned.reply("/v1/models", 200, _MODELS)
    canned.reply("/v1/chat/completions", 200, sse('{"choices": [{"delta": {"content": "Hi"}}]}'))
    result = run("Hello", "--base-url", canned.url)
    assert result.exit_code == 1
    assert result.stdout == "Hi\n"
    assert "before the answer was complete" in result.stderr


def test_an_error_in_the_stream_is_shown_after_the_text(gateway: RunningGateway) -> None:
    gateway.follow("Hello", NodeLost(node="n1", layers="[0, 8)", cause="killed"))
    result = run("Hi", "--base-url", gateway.url)
    assert result.exit_code == 1
    assert result.stdout == "Hello\n"
    assert "Node n1" in result.stderr


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 5}'])
def test_a_server_of_another_kind_is_named(canned: CannedServer, body: bytes) -> None:
    canned.reply("/v1/models", 200, body)
    result = run("Hi", "--base-url", canned.url)
    assert result.exit_code == 1
    assert "does not speak OpenAI's API" in result.stderr


def test_an_empty_model_list_asks_for_a_name(canned: CannedServer) -> None:
    canned.reply("/v1/models", 200, b'{"data": []}')
    assert "--model" in run("Hi", "--base-url", canned.url).stderr


def test_a_silent_server_is_given_up(gateway: RunningGateway) -> None:
    gate = Gate()
    gateway.follow(gate, "late")
    with ApiClient(endpoint_at(gateway.url, quiet_s=0.05)) as client:
        conversation = Conversation(client, MODEL, Console(quiet=True), Console(quiet=True))
        with pytest.raises(ClientError, match="sent nothing for") as caught:
            conversation.ask("Hi")
    assert "--timeout" in str(caught.value)
    assert gateway.generator.ended.wait(DEADLINE_S)


def test_a_busy_server_is_asked_again_after_its_hint(canned: CannedServer) -> None:
    busy = b'{"error": {"message": "Full."}}'
    canned.reply("/v1/chat/completions", 429, busy, Retry_After="7")
    canned.reply("/v1/chat/completions", 503, busy, Retry_After="9999")
    canned.reply("/v1/chat/completions", 200, sse('{"choices": [{"delta": {"content": "Hi"}}]}', "[DONE]"))
    waits_s: list[float] = []
    with conversation_with(canned.url, waits_s) as conversation:
        conversation.ask("Hello")
    assert waits_s == [7.0, 60.0]
    assert conversation.messages[-1] == {"role": "assistant", "content": "Hi"}


def test_a_server_that_stays_busy_is_given_up(gateway: RunningGateway) -> None:
    gateway.follow(Overloaded("64 requests are waiting.", retry_after_s=2))
    waits_s: list[float] = []
    with conversation_with(gateway.url, waits_s) as conversation, pytest.raises(ClientError, match="64"):
        conversation.ask("Hello")
    assert waits_s == [2.0, 2.0, 2.0]
    assert conversation.messages == []


def test_the_conversation_is_sent_whole_and_kept(gateway: RunningGateway) -> None:
    with conversation_with(gateway.url) as conversation:
        conversation.begin("S.")
        conversation.ask("One.")
        conversation.ask("Two.")
    assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "S.One.Hello worldTwo."
    assert [message["role"] for message in conversation.messages] == ["system", *["user", "assistant"] * 2]


def test_a_broken_answer_keeps_the_text_that_came(gateway: RunningGateway) -> None:
    gateway.follow("Hello", NodeLost(node="n1", layers="[0, 8)", cause="killed"))
    with conversation_with(gateway.url) as conversation, pytest.raises(ClientError):
        conversation.ask("One.")
    assert [message["content"] for message in conversation.messages] == ["One.", "Hello"]


@dataclass
class Terminal:
    """`shoal chat` on a pseudo-terminal."""

    process: subprocess.Popen[bytes]
    master: int
    shown: str = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` is shown, and forget what was before it."""
        while text not in self.shown:
            ready, _, _ = select.select([self.master], [], [], DEADLINE_S)
            assert ready, self.shown
            self.shown += os.read(self.master, 4096).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]


@contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    # Opening the terminal makes it the process's own, so that typed Ctrl-C reaches it as a signal.
    script = (
        "import os; os.close(os.open(os.ttyname(0), os.O_RDWR));"
        # A shell that runs the tests in its background has them ignore Ctrl-C.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import typer; from shoal.commands.chat import chat; typer.run(chat)"
    )
    environment = {**os.environ, "SHOAL_URL": url, "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(master)


def test_a_conversation_on_a_terminal(gateway: RunningGateway) -> None:
    """Ctrl-C stops an answer and frees its session, control characters are not shown, Ctrl-D ends."""
    gate = Gate()
    gateway.follow("par\x1b]0;evil\x07tial", gate)
    with terminal(gateway.url) as shell:
        shell.wait_for(MODEL)
        shell.wait_for("> ")
        shell.type("One\n")
        shell.wait_for("par]0;eviltial")
        shell.type("\x03")
        shell.wait_for("Stopped.")
        assert gateway.generator.ended.wait(DEADLINE_S)
        gateway.follow("whole")
        shell.wait_for("> ")
        shell.type("Two\n")
        shell.wait_for("whole")
        assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "Onepar\x1b]0;evil\x07tialTwo"
        shell.wait_for("> ")
        shell.type("/new\n")
        shell.wait_for("> ")
        shell.type("Three\n")
        shell.wait_for("whole")
        assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "Three"
        shell.wait_for("> ")
        shell.type("\x04")
        assert shell.process.wait(DEADLINE_S) == 0
