"""`shoal chat`: talk to a model, on Shoal or on any OpenAI-compatible endpoint.

With a prompt, or with text piped in, it answers once; else it keeps a conversation. The
answer goes to standard output and everything else to standard error.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console

from shoal.core.errors import ConfigError, ShoalError
from shoal.gateway.client import DEFAULT_URL, ApiClient, ClientError, endpoint_at

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

MAX_TRIES = 4
"""Of a request that the server asks to send again later."""

LONGEST_WAIT_S = 60.0

# An answer could otherwise move the cursor, retitle the window or fill the clipboard.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def chat(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Answer this once. Without it: a conversation.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(envvar="SHOAL_URL", help=f"Where to ask, with or without /v1. Default {DEFAULT_URL}."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model id. Default: the first one served.")] = None,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Longest silence of the server, in seconds.")] = 120.0,
) -> None:
    """Talk to a model. Ctrl-C stops an answer, Ctrl-D ends."""
    output, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    question = _one_shot_question(prompt)
    try:
        endpoint = endpoint_at(base_url or DEFAULT_URL, key=key_from(os.environ, base_url), quiet_s=timeout)
        with ApiClient(endpoint) as client:
            conversation = Conversation(
                client,
                model=model or _first_model(client),
                output=output,
                notes=notes,
                wishes={
                    name: value
                    for name, value in (("max_tokens", max_tokens), ("temperature", temperature))
                    if value is not None
                },
            )
            conversation.begin(system)
            if question is not None:
                conversation.ask(question)
            else:
                converse(conversation)
    except ShoalError as error:
        say(notes, str(error))
        raise typer.Exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def key_from(environment: Mapping[str, str], base_url: str | None) -> str | None:
    """The key to send, if any. OpenAI's goes only where the user pointed, never to the default."""
    key = environment.get("SHOAL_API_KEY")
    if not key and base_url is not None:
        key = environment.get("OPENAI_API_KEY")
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise ConfigError(
            "The key in the environment has characters that no key has (a line end, perhaps).",
            next_step="Set SHOAL_API_KEY (or OPENAI_API_KEY) again.",
        )
    return key


@dataclass
class Conversation:
    """Messages so far, and where the next answer comes from and goes to.

    wishes: further fields of each request. sleep: waits that many seconds.
    """

    client: ApiClient
    model: str
    output: Console
    notes: Console
    wishes: Mapping[str, object] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    messages: list[dict[str, str]] = field(default_factory=list)

    def begin(self, system: str | None) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str) -> None:
        """Send the question with all before it, and print the answer as it comes.

        Question and answer join the conversation; a question that got no text does not. On
        Ctrl-C what came so far joins, and KeyboardInterrupt goes on to the caller. Raises
        ClientError.
        """
        self.messages.append({"role": "user", "content": question})
        pieces: list[str] = []
        try:
            self._stream_patiently(pieces)
        except ClientError as error:
            raise self._with_models(error) from None
        finally:
            if pieces:
                self.output.out("")
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()

    def _stream_patiently(self, pieces: list[str]) -> None:
        for num_tries in range(1, MAX_TRIES + 1):
            try:
                self._stream(pieces)
                return
            except ClientError as error:
                is_last = num_tries == MAX_TRIES
                if pieces or is_last or error.status not in (429, 503) or error.retry_after_s is None:
                    raise
                wait_s = min(error.retry_after_s, LONGEST_WAIT_S)
                say(self.notes, f"{error.message} Waiting {wait_s:.0f} s (Ctrl-C stops).")
            self.sleep(wait_s)

    def _stream(self, pieces: list[str]) -> None:
        body = {**self.wishes, "model": self.model, "messages": self.messages}
        with closing(self.client.stream_chat(body)) as stream:
            for piece in stream:
                pieces.append(piece)
                shown = _CONTROL_CHARACTERS.sub("", piece) if self.output.is_terminal else piece
                self.output.out(shown, end="")

    def _with_models(self, error: ClientError) -> ClientError:
        if error.status != 404:
            return error
        try:
            served = self.client.models()
        except ClientError:
            return error
        return ClientError(
            error.message,
            next_step=f"Choose one with --model: {', '.join(served) or 'none is served'}.",
            status=error.status,
        )


def converse(conversation: Conversation) -> None:
    """Ask for questions and answer them until Ctrl-D."""
    say(conversation.notes, f"{conversation.model}. Ctrl-C stops an answer, Ctrl-D ends, /new starts afresh.")
    system = next((m["content"] for m in conversation.messages if m["role"] == "system"), None)
    while True:
        try:
            question = conversation.notes.input("\n> ").strip()
            if question == "/new":
                conversation.begin(system)
            elif question:
                conversation.ask(question)
        except EOFError:
            say(conversation.notes, "")
            return
        except KeyboardInterrupt:
            say(conversation.notes, "Stopped. Ctrl-D ends.")
        except ClientError as error:
            say(conversation.notes, str(error))


def say(notes: Console, text: str) -> None:
    """One line beside the answer; a server's words cannot carry terminal commands."""
    notes.out(_CONTROL_CHARACTERS.sub("", text))


def _one_shot_question(prompt: list[str] | None) -> str | None:
    if prompt:
        return " ".join(prompt)
    if sys.stdin.isatty():
        return None
    question = sys.stdin.read().strip()
    if not question:
        say(Console(stderr=True), "There is no prompt: the piped input is empty.")
        raise typer.Exit(EXIT_USAGE)
    return question


def _first_model(client: ApiClient) -> str:
    models = client.models()
    if not models:
        raise ClientError("The server lists no models.", next_step="Name one with --model.")
    return models[0]
