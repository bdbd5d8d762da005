"""The official client is the judge of the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from shoal.core.errors import EngineError, InvariantBroken, NodeLost, NotReady, Overloaded
from shoal.core.sequence import FinishReason
from tests.unit.gateway.running_gateway import CREATED, DEADLINE_S, DRAWN_SEED, MODEL, N_CTX, RunningGateway

ASK: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def module_client(module_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    url = module_gateway.url + "/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def client(module_client: openai.OpenAI, gateway: RunningGateway) -> openai.OpenAI:
    return module_client


def test_models_are_listed_and_found_by_id(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert (model.id, model.created, model.owned_by) == (MODEL, CREATED, "shoal")
    assert client.models.retrieve(MODEL) == model


def test_unknown_model_id_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL):
        client.models.retrieve("owner/other")


def test_chat_answer_carries_text_reason_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.created == CREATED
    assert answer.model == MODEL
    assert answer.system_fingerprint is not None
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello world")
    assert answer.usage is not None
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4,
    }  # fmt: skip


def test_request_id_and_answer_id_share_their_digits(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK)
    assert answer._request_id is not None
    assert answer.id.removeprefix("chatcmpl-") == answer._request_id.removeprefix("req-")


def test_chat_stream_is_role_then_text_then_reason(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert [delta.content for delta in deltas] == ["", "Hello", " world", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_include_usage_ends_with_one_usage_chunk(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
        )
    )
    assert [bool(chunk.choices) for chunk in chunks] == [True] * 4 + [False]
    assert [chunk.usage is not None for chunk in chunks] == [False] * 4 + [True]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 4


def test_legacy_completion_whole_and_streamed_agree(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="abc")
    chunks = list(client.completions.create(model=MODEL, prompt=["abc"], stream=True))
    assert whole.id.startswith("cmpl-")
    assert whole.choices[0].text == "Hello world"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 3
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_finish_reason_length_reaches_the_client(client: openai.OpenAI, gateway: RunningGateway) -> None:
    gateway.follow("a", FinishReason.LENGTH)
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)
    assert answer.choices[0].finish_reason == "length"


def test_legacy_max_tokens_zero_counts_the_prompt_and_generates_nothing(
    client: openai.OpenAI, gateway: RunningGateway
) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=0)
    assert answer.choices[0].text == ""
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    assert gateway.generator.requests == []


def test_every_supported_field_reaches_the_generator(client: openai.OpenAI, gateway: RunningGateway) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        stop=["x", "yy"],
        extra_body={"top_k": 40, "min_p": 0.05, "ignore_eos": True},
    )
    request = gateway.last_request
    assert request.prompt_tokens == (ord("H"), ord("i"))
    assert request.max_tokens == 7
    assert request.stop == ("x", "yy")
    assert request.ignore_eog
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert sampling.seed == 2**64 - 1


def test_defaults_are_filled_in(client: openai.OpenAI, gateway: RunningGateway) -> None:
    client.chat.completions.create(model=MODEL, messages=ASK)
    request = gateway.last_request
    assert request.max_tokens == 1024
    assert request.sampling.seed == DRAWN_SEED
    assert request.sampling.temperature == 1.0
    assert request.stop == ()


def test_default_max_tokens_is_what_the_context_leaves(
    client: openai.OpenAI, gateway: RunningGateway
) -> None:
    client.completions.create(model=MODEL, prompt="x" * (N_CTX - 5))
    assert gateway.last_request.max_tokens == 5


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fits"),
    [
        (N_CTX - 1, None, True),
        (N_CTX - 1, 1, True),
        (N_CTX - 1, 2, False),
        (N_CTX, None, False),
        (N_CTX + 1, None, False),
        (10, 10**12, False),
    ],
)
def test_context_edge(client: openai.OpenAI, prompt_tokens: int, max_tokens: int | None, fits: bool) -> None:
    wish: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    if fits:
        client.completions.create(model=MODEL, prompt="x" * prompt_tokens, **wish)
        return
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x" * prompt_tokens, **wish)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    assert str(N_CTX) in caught.value.message
    assert str(prompt_tokens) in caught.value.message


def test_prompts_become_tokens_outside_the_loop(client: openai.OpenAI, gateway: RunningGateway) -> None:
    client.completions.create(model=MODEL, prompt="text")
    client.chat.completions.create(model=MODEL, messages=ASK)
    assert gateway.encode_threads
    assert "gateway-loop" not in gateway.encode_threads


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["no-such-model", ""])
def test_unknown_model_lists_the_served_ones(client: openai.OpenAI, model: str, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model=model, messages=ASK, stream=stream)
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_full_queue_is_a_rate_limit_error_with_a_hint(
    client: openai.OpenAI, gateway: RunningGateway, stream: bool
) -> None:
    gateway.follow(Overloaded("64 requests are waiting.", retry_after_s=2.4))
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, stream=stream)
    assert caught.value.response.headers["retry-after"] == "3"
    assert caught.value.type == "rate_limit_error"
    assert "64 requests are waiting. Try again" in caught.value.message
    assert caught.value.response.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        NotReady("Layers [0, 8) have no live owner.", retry_after_s=5),
        NodeLost(node="n1", layers="[0, 8)", cause="killed"),
    ],
)
def test_missing_machines_are_503_with_a_hint(
    client: openai.OpenAI, gateway: RunningGateway, error: Exception, stream: bool
) -> None:
    gateway.follow(error)
    with pytest.raises(openai.InternalServerError, match=r"\[0, 8\)") as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, stream=stream)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_an_answer_that_fails_midway_is_an_error_when_not_streamed(
    client: openai.OpenAI, gateway: RunningGateway
) -> None:
    gateway.follow("Hello", NodeLost(node="n1", layers="[0, 8)", cause="killed"))
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK)
    assert caught.value.code == "node_lost"


def test_an_answer_that_fails_midway_raises_in_the_stream(
    client: openai.OpenAI, gateway: RunningGateway
) -> None:
    gateway.follow("Hello", NodeLost(node="n1", layers="[0, 8)", cause="killed"))
    stream = client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    texts: list[str | None] = []
    with pytest.raises(openai.APIError, match="n1") as caught:
        texts.extend(chunk.choices[0].delta.content for chunk in stream)
    assert texts == ["", "Hello"]
    assert caught.value.code == "node_lost"


def test_engine_errors_keep_their_text(client: openai.OpenAI, gateway: RunningGateway) -> None:
    gateway.follow(EngineError("Decode failed on node-1."))
    with pytest.raises(openai.InternalServerError, match="node-1") as caught:
        client.chat.completions.create(model=MODEL, messages=ASK)
    assert caught.value.status_code == 500


@pytest.mark.parametrize("error", [ValueError("secret 123"), InvariantBroken("secret 123")])
@pytest.mark.parametrize("stream", [False, True])
def test_bugs_are_answered_without_their_text(
    client: openai.OpenAI, gateway: RunningGateway, error: Exception, stream: bool
) -> None:
    gateway.follow(error)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, stream=stream)
    assert caught.value.status_code == 500
    assert caught.value.type == "server_error"
    assert "secret" not in caught.value.response.text
    assert caught.value.response.headers["x-request-id"] in caught.value.message


def test_an_earlier_answer_can_be_sent_back_as_it_came(
    client: openai.OpenAI, gateway: RunningGateway
) -> None:
    earlier = client.chat.completions.create(model=MODEL, messages=ASK).choices[0].message
    messages: list[Any] = [*ASK, earlier, {"role": "user", "content": "!"}]
    client.chat.completions.create(model=MODEL, messages=messages)
    assert "".join(map(chr, gateway.last_request.prompt_tokens)) == "HiHello world!"


def test_all_neutral_values_are_accepted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        n=1,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        logprobs=False,
        top_logprobs=None,
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        modalities=["text"],
        service_tier="auto",
        store=False,
        user="somebody",
        metadata={"a": "b"},
        safety_identifier="x",
        prompt_cache_key="y",
        max_tokens=None,
        temperature=None,
        top_p=None,
        seed=None,
        stop=None,
        stream=False,
        stream_options=None,
    )
    assert answer.choices[0].message.content == "Hello world"
