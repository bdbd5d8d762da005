"""Every request field, asked for by the official client and answered by a whole pipeline.

The cases users report (R01 to R23, R26), and the tests that replay them, each for its whole kind:

R01 bias outside the vocabulary    here: nobody else's stream is touched
R02 odd bias keys and values       unit/gateway/test_logit_bias; here: banned tokens never come
R03 stop text over tokens          unit/pipeline/test_text_stream; here: streamed and whole
R04 stop edge values               unit/gateway/test_openai_api, unit/pipeline/test_text_stream; here
R05 split characters               unit/pipeline/test_text_stream, test_held_logprobs; test_needs_characters
R06 max_tokens 0 or odd            unit/gateway/test_openai_api, test_openai_client; here: exact counts
R07 max_completion_tokens          unit/gateway/test_openai_api; here: exact counts
R08 n                              unit/gateway/test_openai_api, test_choices; here
R09 seed                           unit/gateway/test_openai_api, unit/engine/test_sampling; here: under load
R10 usage in streams               unit/gateway/test_openai_client; here: with several choices
R11 logprobs shape                 unit/gateway/test_logprob_format; here; test_needs_model: against the model
R12 extreme sampling               unit/gateway/test_openai_api, unit/engine/test_sampling; test_needs_model
R13 missing or empty messages      unit/gateway/test_chat_messages; here: over HTTP
R15 context edge                   unit/gateway/test_openai_client; here: to the token
R16 turns, roles                   unit/gateway/test_chat_messages; test_needs_model
R17 content as parts               unit/gateway/test_chat_messages; here: over HTTP
R18 unknown model                  unit/gateway/test_openai_client, test_app
R19 broken bodies                  unit/gateway/test_request_body
R20 very long messages             unit/pipeline/test_tokenizer; test_needs_model: over HTTP
R22 mixed lengths at once          test_needs_load
R23 overload                       test_needs_load
R26 client leaves                  test_needs_load, unit/gateway/test_event_stream
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from shoal.core.sequence import GenerateRequest, SamplingParams
from shoal.gateway.choices import seed_of_choice
from tests.support.digest_reference import digest_draws
from tests.support.served_pipeline import (
    DEADLINE_S,
    MODEL,
    N_VOCAB,
    NUM_LAYERS,
    Served,
    digest_tokens,
    expected_digests,
    served_digests,
)

N_CTX = 2000
GOES_ON = {"ignore_eos": True}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with served_digests(n_ctx=N_CTX) as service:
        yield service


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S
    ) as official:
        yield official


def request(prompt: str, max_tokens: int, *, choice: int = 0, seed: int = 5, **more: Any) -> GenerateRequest:
    """What the pipeline is asked for one choice."""
    stop, ignore_eog = more.pop("stop", ()), more.pop("ignore_eog", False)
    sampling = SamplingParams(seed=seed_of_choice(seed, choice), **more)
    return GenerateRequest("r", tuple(digest_tokens(prompt)), max_tokens, sampling, stop, ignore_eog)


def text_of(prompt: str, max_tokens: int, **more: Any) -> str:
    return expected_digests(request(prompt, max_tokens, **more))[0]


def tokens_of(prompt: str, max_tokens: int, **more: Any) -> list[int]:
    drawn = digest_draws(request(prompt, max_tokens, **more), num_layers=NUM_LAYERS, n_vocab=N_VOCAB)
    return [token for token, _ in drawn]


def chat(client: openai.OpenAI, content: Any = "hello", **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model=MODEL, messages=messages, **{"seed": 5, **fields})


def complete(client: openai.OpenAI, prompt: Any = "hello", **fields: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **{"seed": 5, **fields})


def streamed_texts(chunks: Any, num_choices: int = 1) -> list[str]:
    """The text of each choice, from either endpoint's chunks."""
    texts = [""] * num_choices
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text if hasattr(choice, "text") else choice.delta.content or ""
    return texts


# ---------------------------------------------------------------- all at once


ALL_CHAT: dict[str, Any] = {
    "n": 2,
    "max_completion_tokens": 20,
    "temperature": 0.7,
    "top_p": 0.9,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"7": -100, "11": 2},
    "logprobs": True,
    "top_logprobs": 3,
    "seed": 9,
    "stop": ["99 ", "nothing"],
    "extra_body": {"top_k": 50, "min_p": 0.01, "ignore_eos": False},
}


def expected_all(choice: int) -> str:
    return text_of(
        "hello",
        20,
        choice=choice,
        seed=9,
        temperature=0.7,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias=((7, -100.0), (11, 2.0)),
        stop=("99 ", "nothing"),
    )


def test_every_field_at_once_reaches_the_engine_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = chat(client, **ALL_CHAT)
    assert [choice.message.content for choice in whole.choices] == [expected_all(0), expected_all(1)]
    chunks = chat(client, **ALL_CHAT, stream=True, stream_options={"include_usage": True})
    assert streamed_texts(chunks, 2) == [expected_all(0), expected_all(1)]


def test_every_field_at_once_reaches_the_engine_from_the_legacy_endpoint(client: openai.OpenAI) -> None:
    fields = {**ALL_CHAT, "max_tokens": 20, "logprobs": 3}
    del fields["max_completion_tokens"], fields["top_logprobs"]
    whole = complete(client, **fields)
    assert [choice.text for choice in whole.choices] == [expected_all(0), expected_all(1)]
    assert streamed_texts(complete(client, **fields, stream=True), 2) == [expected_all(0), expected_all(1)]


# ---------------------------------------------------------------- how many tokens


@pytest.mark.parametrize("field", ["max_completion_tokens", "max_tokens"])
@pytest.mark.parametrize("limit", [1, 5])
def test_a_limit_is_kept_to_the_token(client: openai.OpenAI, field: str, limit: int) -> None:
    answer = chat(client, **{field: limit}, extra_body=GOES_ON)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == limit
    assert answer.choices[0].message.content == text_of("hello", limit, ignore_eog=True)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fits"),
    [
        (N_CTX - 1, None, True),
        (N_CTX - 2, 2, True),
        (N_CTX - 2, 3, False),
        (N_CTX, 1, False),
        (N_CTX * 10, 1, False),
    ],
)
def test_the_context_is_filled_to_the_token_and_no_further(
    client: openai.OpenAI, prompt_tokens: int, max_tokens: int | None, fits: bool
) -> None:
    prompt = [number % N_VOCAB for number in range(prompt_tokens)]
    if not fits:
        with pytest.raises(openai.BadRequestError, match=f"{N_CTX} tokens.*{prompt_tokens} tokens") as caught:
            complete(client, prompt, max_tokens=max_tokens)
        assert caught.value.code == "context_length_exceeded"
        return
    answer = complete(client, prompt, max_tokens=max_tokens, extra_body=GOES_ON)
    assert answer.usage.total_tokens == N_CTX


# ---------------------------------------------------------------- several choices


@pytest.mark.parametrize("stream", [False, True])
def test_three_choices_differ_and_repeat_as_a_set(client: openai.OpenAI, stream: bool) -> None:
    def ask() -> list[str]:
        answer = chat(client, n=3, seed=42, max_tokens=12, stream=stream)
        if stream:
            return streamed_texts(answer, 3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert first == ask()
    assert first == [text_of("hello", 12, seed=42, choice=choice) for choice in range(3)]
    assert chat(client, seed=42, max_tokens=12).choices[0].message.content == first[0]


def test_without_a_seed_choices_differ_and_do_not_repeat(client: openai.OpenAI) -> None:
    texts = [c.message.content for _ in range(2) for c in chat(client, n=3, seed=None, max_tokens=12).choices]
    assert len(set(texts)) == 6


def test_the_prompt_counts_once_however_many_choices_there_are(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 4, "max_tokens": 6, "extra_body": GOES_ON}
    whole = chat(client, **fields)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 24)
    chunks = list(chat(client, **fields, stream=True, stream_options={"include_usage": True}))
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].usage == whole.usage
    for number in range(4):
        own = [c for chunk in chunks for c in chunk.choices if c.index == number]
        assert own[0].delta.role == "assistant"
        assert [c.finish_reason for c in own] == [None] * (len(own) - 1) + ["length"]
        assert [c.delta.role for c in own[1:]] == [None] * (len(own) - 1)


@pytest.mark.parametrize("include_usage", [False, None])
def test_no_usage_comes_in_a_stream_that_did_not_ask(
    client: openai.OpenAI, include_usage: bool | None
) -> None:
    options = {} if include_usage is None else {"include_usage": include_usage}
    chunks = list(chat(client, n=2, max_tokens=3, stream=True, stream_options=options))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_each_get_their_choices_in_order(client: openai.OpenAI, stream: bool) -> None:
    prompts = ["ab", "hello", "ab"]
    answer = complete(client, prompts, n=2, max_tokens=8, stream=stream)
    texts = streamed_texts(answer, 6) if stream else [choice.text for choice in answer.choices]
    assert texts == [text_of(prompts[number // 2], 8, choice=number) for number in range(6)]
    assert len(set(texts)) == 6
    if not stream:
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert answer.usage.prompt_tokens == 9


@pytest.mark.parametrize("prompt", [digest_tokens("hello"), [digest_tokens("hello")]])
def test_token_ids_are_the_same_prompt_as_their_text(client: openai.OpenAI, prompt: Any) -> None:
    assert complete(client, prompt, max_tokens=8).choices[0].text == text_of("hello", 8)


def test_texts_and_token_ids_may_be_mixed(client: openai.OpenAI) -> None:
    answer = complete(client, ["hello", digest_tokens("ab")], max_tokens=8)
    assert [c.text for c in answer.choices] == [text_of("hello", 8), text_of("ab", 8, choice=1)]


@pytest.mark.parametrize("prompt", [[N_VOCAB], [-1], [[5], [10**30]]])
def test_token_ids_outside_the_vocabulary_are_refused(client: openai.OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=f"0 to {N_VOCAB - 1}") as caught:
        complete(client, prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("n", [0, -1, 129, 100_000, 1.5, True])
def test_a_number_of_choices_out_of_range_is_refused_at_once(
    client: openai.OpenAI, served: Served, n: Any
) -> None:
    served.wait_until_empty()
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, n=n)
    assert caught.value.param == "n"
    assert served.is_empty()


# ---------------------------------------------------------------- seeds


def test_a_seed_repeats_idle_and_beside_other_requests(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        text: str = chat(client, seed=seed, max_tokens=40).choices[0].message.content
        return text

    seeds = [0, 1, -1, -2, 2**63 - 1, -(2**63), 42, 43]
    idle = [ask(seed) for seed in seeds]
    assert len(set(idle)) == len(seeds)
    assert idle == [text_of("hello", 40, seed=seed % 2**64) for seed in seeds]
    with ThreadPoolExecutor(len(seeds)) as pool:
        assert list(pool.map(ask, seeds)) == idle


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1, 1.0, "1"])
def test_other_seeds_are_refused(client: openai.OpenAI, seed: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, seed=seed)
    assert caught.value.param == "seed"


# ---------------------------------------------------------------- bias and penalties


def test_a_banned_token_never_comes_also_greedily(client: openai.OpenAI) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "extra_body": GOES_ON}
    banned: set[int] = set()
    for _ in range(4):
        text = chat(client, **greedy, logit_bias={str(token): -100 for token in banned})
        tokens = [int(word) for word in text.choices[0].message.content.split()]
        assert not banned & set(tokens)
        banned |= set(tokens[:3])
    assert len(banned) == 12


def test_a_token_that_is_pushed_is_the_only_one(client: openai.OpenAI) -> None:
    answer = chat(client, temperature=2, max_tokens=5, logit_bias={"123": 100})
    assert answer.choices[0].message.content == "123 " * 5


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [-2, 2])
def test_penalties_change_the_answer_as_the_formula_has_it(
    client: openai.OpenAI, name: str, value: float
) -> None:
    # Few tokens of nearly the same weight, so that a penalty decides between them.
    pushed = {str(token): 100 for token in range(100, 130)}
    fields = {"temperature": 0.0, "logit_bias": tuple((int(t), float(b)) for t, b in pushed.items())}
    answer = chat(client, temperature=0, max_tokens=40, logit_bias=pushed, **{name: value})
    text = answer.choices[0].message.content
    assert text == text_of("hello", 40, **fields, **{name: float(value)})
    assert text != text_of("hello", 40, **fields)


def test_a_bias_outside_the_vocabulary_is_refused_and_other_streams_go_on(client: openai.OpenAI) -> None:
    def stream(number: int) -> str:
        return streamed_texts(chat(client, seed=number, max_tokens=150, stream=True, extra_body=GOES_ON))[0]

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream, number) for number in range(8)]
        for token in ("999999999", str(N_VOCAB)):
            with pytest.raises(openai.BadRequestError, match=f"token {token}") as caught:
                chat(client, logit_bias={token: 5})
            assert caught.value.param == "logit_bias"
        for number, running in enumerate(streams):
            assert running.result() == text_of("hello", 150, seed=number, ignore_eog=True)


def test_a_bias_that_bans_everything_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="every token") as caught:
        chat(client, logit_bias={str(token): -100 for token in range(N_VOCAB)})
    assert caught.value.param == "logit_bias"


# ---------------------------------------------------------------- stop texts


def test_a_stop_of_two_words_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    whole = text_of("hello", 30, ignore_eog=True)
    words = whole.split()
    stop = f"{words[8]} {words[9]}"
    expected = whole[: whole.index(stop)]
    answer = chat(client, max_tokens=30, stop=stop, extra_body=GOES_ON)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (expected, "stop")
    deltas = [
        chunk.choices[0].delta.content or ""
        for chunk in chat(client, max_tokens=30, stop=stop, stream=True, extra_body=GOES_ON)
    ]
    assert "".join(deltas) == expected


def test_what_only_begins_a_stop_text_at_the_end_is_shown(client: openai.OpenAI) -> None:
    whole = text_of("hello", 10, ignore_eog=True)
    stop = whole[-6:] + "and more"
    fields: dict[str, Any] = {"max_tokens": 10, "stop": [stop], "extra_body": GOES_ON}
    assert chat(client, **fields).choices[0].message.content == whole
    assert streamed_texts(chat(client, **fields, stream=True)) == [whole]


@pytest.mark.parametrize(
    "case", ["none", "empty list", "long", "overlapping", "four", "at the start", "space"]
)
def test_stop_edge_values_are_the_same_whole_and_streamed(client: openai.OpenAI, case: str) -> None:
    whole = text_of("hello", 20, ignore_eog=True)
    words = whole.split()
    stops: dict[str, list[str] | None] = {
        "none": None,
        "empty list": [],
        "long": ["y" * 10_000],
        "overlapping": [f"{words[5]} {words[6]}", words[6], f"{words[4]} {words[5]} {words[6]} {words[7]}"],
        "four": ["never", "not this", words[12], words[3]],
        "at the start": [words[0]],
        "space": [" "],
    }
    stop = stops[case]
    expected, reason = expected_digests(request("hello", 20, stop=tuple(stop or ()), ignore_eog=True))
    fields: dict[str, Any] = {"max_tokens": 20, "stop": stop, "extra_body": GOES_ON}
    answer = chat(client, **fields)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (expected, reason.value)
    assert streamed_texts(chat(client, **fields, stream=True)) == [expected]
    assert not any(text in expected for text in stop or ())


# ---------------------------------------------------------------- logprobs


@pytest.mark.parametrize("top_logprobs", [None, 0, 1, 20])
@pytest.mark.parametrize("stop", [None, "9 1", "4"])
def test_chat_logprobs_are_those_of_the_text(
    client: openai.OpenAI, top_logprobs: int | None, stop: str | None
) -> None:
    fields: dict[str, Any] = {"max_tokens": 25, "logprobs": True, "top_logprobs": top_logprobs, "stop": stop}
    answer = chat(client, **fields, extra_body=GOES_ON)
    choice = answer.choices[0]
    assert choice.message.content == text_of("hello", 25, ignore_eog=True, stop=(stop,) if stop else ())
    content = choice.logprobs.content
    told = b"".join(bytes(token.bytes) for token in content).decode()
    assert told.startswith(choice.message.content)
    if stop is None:
        assert [int(token.token) for token in content] == tokens_of("hello", 25)
    for token in content:
        assert bytes(token.bytes) == token.token.encode()
        assert math.isfinite(token.logprob)
        assert len(token.top_logprobs) == (top_logprobs or 0)
        logprobs = [top.logprob for top in token.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
    streamed = [
        (chunk.choices[0].delta.content, chunk.choices[0].logprobs)
        for chunk in chat(client, **fields, stream=True, extra_body=GOES_ON)
    ]
    together = [token for _, logprobs in streamed if logprobs for token in logprobs.content]
    assert together == content
    text = told = ""
    for piece, logprobs in streamed:
        text += piece or ""
        told += "".join(token.token for token in logprobs.content) if logprobs else ""
        # What has been told of tokens is never a whole token behind the text, nor ahead of it.
        assert told.startswith(text) or text.startswith(told)
        assert abs(len(told) - len(text)) < len("999 ")


def test_logprobs_change_no_text_and_are_null_where_not_asked(client: openai.OpenAI) -> None:
    plain = chat(client, max_tokens=12).choices[0]
    assert plain.logprobs is None
    assert chat(client, max_tokens=12, logprobs=True).choices[0].message == plain.message


@pytest.mark.parametrize("logprobs", [0, 1, 5])
def test_legacy_logprobs_are_four_lists(client: openai.OpenAI, logprobs: int) -> None:
    fields: dict[str, Any] = {"max_tokens": 10, "logprobs": logprobs, "n": 2, "extra_body": GOES_ON}
    answer = complete(client, **fields)
    for choice in answer.choices:
        told = choice.logprobs
        assert "".join(told.tokens) == choice.text
        assert [choice.text[at:].startswith(t) for at, t in zip(told.text_offset, told.tokens, strict=True)]
        assert told.text_offset == [sum(map(len, told.tokens[:number])) for number in range(10)]
        for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
            assert logprobs <= len(top) <= logprobs + 1
            assert top[token] == logprob
            assert math.isfinite(logprob)
    chunks = list(complete(client, **fields, stream=True))
    for choice in answer.choices:
        own = [c for chunk in chunks for c in chunk.choices if c.index == choice.index and c.logprobs]
        assert [t for c in own for t in c.logprobs.tokens] == choice.logprobs.tokens
        assert [o for c in own for o in c.logprobs.text_offset] == choice.logprobs.text_offset


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        (5, "messages"),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "user", "content": None}], "messages"),
        ([{"role": "user", "content": []}], "messages"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            "messages[0].content[0]",
        ),
    ],
)
def test_messages_that_say_nothing_are_the_client_s_fault(
    client: openai.OpenAI, messages: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_text_parts_are_one_text(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert chat(client, parts, max_tokens=8).choices[0].message.content == text_of("hello", 8)
