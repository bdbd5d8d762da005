"""Fields that only a model can prove, on a tiny one cut in two: R02, R11, R12, R16, R20.

What comes over HTTP is compared with the undivided model's own logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from shoal.pipeline.chat_template import ChatTemplate
from shoal.pipeline.text_stream import TextStream
from shoal.pipeline.tokenizer import Tokenizer
from tests.support.reference import Piece, Settings, UndividedModel
from tests.support.served_pipeline import DEADLINE_S, MODEL, served_model
from tests.support.tiny_models import write_tiny_model

N_CTX = 512
NUM_LAYERS = 4
PROMPT = [40, 41, 42, 43, 44]
GOES_ON = {"ignore_eos": True}


@dataclass(frozen=True)
class ServedModel:
    client: openai.OpenAI
    tokenizer: Tokenizer
    path: Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    folder = tmp_path_factory.mktemp("model")
    path = write_tiny_model(folder / "tiny.gguf", "qwen2", num_layers=NUM_LAYERS)
    with (
        served_model(path, NUM_LAYERS, folder, n_ctx=N_CTX) as (served, tokenizer),
        openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0, timeout=DEADLINE_S) as client,
    ):
        yield ServedModel(client, tokenizer, path)


def complete(model: ServedModel, **fields: Any) -> Any:
    fields = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "extra_body": GOES_ON, **fields}
    return model.client.completions.create(model=MODEL, **fields)


def chat(model: ServedModel, messages: list[Any], **fields: Any) -> Any:
    return model.client.chat.completions.create(model=MODEL, messages=messages, **{"max_tokens": 4, **fields})


def greedy_run(
    model: ServedModel, steps: int, *, banned: frozenset[int] = frozenset()
) -> list[tuple[int, NDArray[Any]]]:
    """Tokens of the undivided model and the log softmax that each was taken from."""
    run: list[tuple[int, NDArray[Any]]] = []
    tokens, position = list(PROMPT), 0
    with UndividedModel(model.path, Settings(cells=N_CTX)) as undivided:
        for _ in range(steps):
            [logits] = undivided.compute([Piece(0, position, tokens[position:])])
            assert logits is not None
            position = len(tokens)
            wide = logits.astype(np.float64)
            logprobs = wide - (wide.max() + math.log(np.exp(wide - wide.max()).sum()))
            allowed = [-math.inf if token in banned else logit for token, logit in enumerate(logits)]
            tokens.append(int(np.argmax(allowed)))
            run.append((tokens[-1], logprobs))
    return run


def text_of(model: ServedModel, tokens: list[int]) -> str:
    stream = TextStream()
    return stream.feed(model.tokenizer.decode(tokens)) + stream.flush()


# ---------------------------------------------------------------- logprobs and bias


def test_logprobs_are_the_undivided_model_s_log_softmax(model: ServedModel) -> None:
    run = greedy_run(model, 12)
    told = complete(model, logprobs=5).choices[0].logprobs
    assert told.token_logprobs == pytest.approx([float(logprobs[token]) for token, logprobs in run], abs=1e-4)
    for top, (_, logprobs) in zip(told.top_logprobs, run, strict=True):
        assert list(top.values())[:5] == pytest.approx(
            np.sort(logprobs)[::-1][: len(top)][:5].tolist(), abs=1e-4
        )


def test_chat_logprobs_have_twenty_alternatives_also_of_byte_tokens(model: ServedModel) -> None:
    answer = chat(
        model,
        [{"role": "user", "content": "é😀"}],
        logprobs=True,
        top_logprobs=20,
        temperature=1,
        seed=3,
        n=4,
        max_tokens=20,
    )
    for choice in answer.choices:
        for token in choice.logprobs.content:
            assert len(token.top_logprobs) == 20
            assert all(
                math.isfinite(top.logprob) and top.logprob <= 0 for top in (token, *token.top_logprobs)
            )
            for top in (token, *token.top_logprobs):
                assert "\ufffd" not in top.token
                if top.bytes is not None:
                    assert bytes(top.bytes).decode(errors="backslashreplace") == top.token


def test_banning_what_comes_first_gives_what_the_undivided_model_has_second(model: ServedModel) -> None:
    banned: list[int] = []
    for _ in range(3):
        run = greedy_run(model, 12, banned=frozenset(banned))
        answer = complete(model, logit_bias={str(token): -100 for token in banned})
        assert answer.choices[0].text == text_of(model, [token for token, _ in run])
        assert not {token for token, _ in run} & set(banned)
        banned.append(run[0][0])


def test_a_penalty_ends_a_repetition(model: ServedModel) -> None:
    fields: dict[str, Any] = {"logit_bias": {"70": 100, "71": 90}, "max_tokens": 30}
    assert set(complete(model, **fields).choices[0].text) == {text_of(model, [70])}
    both = complete(model, **fields, frequency_penalty=2).choices[0].text
    assert set(both) == {text_of(model, [70]), text_of(model, [71])}


# ---------------------------------------------------------------- sampling


@pytest.mark.parametrize("temperature", [1e-4, 5e-324])
def test_a_very_low_temperature_is_greedy(model: ServedModel, temperature: float) -> None:
    greedy = complete(model).choices[0].text
    assert complete(model, temperature=temperature, seed=7).choices[0].text == greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 999999),
        ("temperature", -1),
        ("top_p", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("presence_penalty", 9),
        ("frequency_penalty", -9),
    ],
)
def test_extreme_values_are_refused_by_name_and_the_next_answer_comes(
    model: ServedModel, field: str, value: float
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(model, **{field: value})
    assert caught.value.param == field
    assert complete(model, max_tokens=1).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_a_model_differ_and_repeat_as_a_set(model: ServedModel, stream: bool) -> None:
    def ask() -> list[str]:
        answer = complete(model, temperature=1, seed=42, n=3, stream=stream)
        if not stream:
            return [choice.text for choice in answer.choices]
        texts = [""] * 3
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        return texts

    first = ask()
    assert len(set(first)) == 3
    assert first == ask()


# ---------------------------------------------------------------- turns


@pytest.mark.parametrize(
    "roles", [("user", "user"), ("developer", "user"), ("system", "user", "assistant", "assistant", "user")]
)
def test_doubled_roles_and_developer_messages_are_all_in_the_prompt(
    model: ServedModel, roles: tuple[str, ...]
) -> None:
    messages = [{"role": role, "content": f"text {number}"} for number, role in enumerate(roles)]
    template = ChatTemplate(model.tokenizer.chat_template, model.tokenizer)
    expected = template.encode([{**m, "role": m["role"].replace("developer", "system")} for m in messages])
    answer = chat(model, messages, logprobs=True)
    assert answer.usage.prompt_tokens == len(expected)
    assert all(f"text {number}" in model.tokenizer.decode(expected).decode() for number in range(len(roles)))


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}, "messages[1].tool_calls"),
        ({"role": "tool", "content": "x", "tool_call_id": "c1"}, "messages[1].role"),
        ({"role": "tool", "content": "x", "tool_call_id": None}, "messages[1].role"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[1].role"),
    ],
)
def test_tool_turns_are_refused_by_place_and_never_dropped(
    model: ServedModel, message: Any, param: str
) -> None:
    user = {"role": "user", "content": "x"}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(model, [user, message, message, user])
    assert caught.value.param == param


# ---------------------------------------------------------------- long messages


@pytest.mark.parametrize("letter", ["a", " ", "é"])
@pytest.mark.parametrize("num_bytes", [50_000, 1_000_000])
def test_a_very_long_message_is_a_typed_error(model: ServedModel, letter: str, num_bytes: int) -> None:
    content = letter * (num_bytes // len(letter.encode()))
    with pytest.raises(openai.BadRequestError, match=f"context is {N_CTX} tokens") as caught:
        chat(model, [{"role": "user", "content": content + "."}])
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
