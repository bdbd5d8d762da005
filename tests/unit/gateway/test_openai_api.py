"""Request bodies: what is taken, what is refused, and that the field at fault is named."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import BadRequest
from shoal.gateway.openai_api import AnswerRequest, parse_chat, parse_completion

_ASK = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> AnswerRequest:
    return parse_chat({"model": "m", "messages": _ASK, **fields})


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", 999999),
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", []),
        ("top_p", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", False),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 1.0),
        ("seed", "1"),
        ("seed", True),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", -2),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_completion_tokens", 0),
        ("max_completion_tokens", "5"),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", {}),
        ("stream", "true"),
        ("stream", 1),
        ("stream_options", True),
        ("ignore_eos", 1),
        ("model", 5),
        ("presence_penalty", 2.1),
        ("presence_penalty", -9),
        ("presence_penalty", False),
        ("frequency_penalty", 9),
        ("frequency_penalty", "1"),
        ("frequency_penalty", float("nan")),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 100_000),
        ("n", True),
        ("n", "1"),
        ("n", 1.0),
        ("logprobs", 1),
        ("logprobs", "true"),
        ("top_logprobs", -1),
        ("top_logprobs", 21),
        ("top_logprobs", True),
        ("top_logprobs", 5),
    ],
)
def test_values_out_of_range_or_of_the_wrong_type_name_the_field(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.1),
        ("repeat_penalty", 1.1),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("parallel_tool_calls", 1),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "text", "x": 1}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("moderation", {"model": "x"}),
        ("web_search_options", {}),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("service_tier", "flex"),
        ("store", True),
        ("prompt_cache_options", {"ttl": "30m"}),
        ("prompt_cache_retention", "24h"),
    ],
)
def test_fields_not_supported_yet_are_refused_by_name(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert error.message.startswith(f"{name} is not supported")
    assert error.code == "unsupported_parameter"


def test_every_field_of_the_official_client_is_supported_neutral_or_a_label() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
    from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextParams

    for name in ChatParams.__annotations__.keys() - {"model", "messages"}:
        chat(**{name: None})
    for name in TextParams.__annotations__.keys() - {"model", "prompt"}:
        parse_completion({"model": "m", "prompt": "x", name: None})


@pytest.mark.parametrize("name", ["temprature", "mirostat", "best_of", "", "a.b"])
def test_unknown_fields_are_refused_by_name(name: str) -> None:
    error = refused(**{name: None})
    assert error.param == name
    assert error.code == "unknown_parameter"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 2),
        ("best_of", 0),
        ("echo", True),
        ("suffix", "x"),
        ("logprobs", 6),
        ("logprobs", -1),
        ("logprobs", True),
        ("top_logprobs", 1),
        ("max_completion_tokens", 5),
        ("n", 129),
    ],
)
def test_legacy_values_that_are_not_taken_name_the_field(name: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_completion({"model": "m", "prompt": "x", name: value})
    assert caught.value.param == name


def test_legacy_neutral_values_are_accepted() -> None:
    body = {"model": "m", "prompt": "x", "best_of": 1, "echo": False, "logprobs": None, "suffix": "", "n": 1}
    assert parse_completion(body).prompts == ("x",)


def test_best_of_n_asks_for_nothing_and_anything_else_is_refused() -> None:
    assert parse_completion({"prompt": "x", "n": 3, "best_of": 3}).num_choices == 3
    with pytest.raises(BadRequest, match="best_of is 1 and n is 3"):
        parse_completion({"prompt": "x", "n": 3, "best_of": 1})


@pytest.mark.parametrize(
    ("num_prompts", "n", "param"), [(64, 2, None), (128, None, None), (65, 2, "n"), (129, None, "prompt")]
)
def test_all_choices_of_all_prompts_have_one_limit(
    num_prompts: int, n: int | None, param: str | None
) -> None:
    body = {"prompt": ["x"] * num_prompts, "n": n}
    if param is None:
        assert len(parse_completion(body).prompts) == num_prompts
        return
    with pytest.raises(BadRequest) as caught:
        parse_completion(body)
    assert caught.value.param == param


def test_logprobs_are_asked_for_in_each_endpoints_way() -> None:
    assert chat().sampling.top_logprobs is None
    assert chat(logprobs=False, top_logprobs=0).sampling.top_logprobs is None
    assert chat(logprobs=True).sampling.top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).sampling.top_logprobs == 20
    for asked in (None, 0, 5):
        assert parse_completion({"prompt": "x", "logprobs": asked}).sampling.top_logprobs == asked


def test_top_logprobs_alone_says_what_is_missing() -> None:
    assert "logprobs is not true" in refused(top_logprobs=5).message
    assert refused(logprobs=False, top_logprobs=5).param == "top_logprobs"


def test_penalties_and_bias_become_sampling_parameters() -> None:
    sampling = chat(presence_penalty=2, frequency_penalty=-2, logit_bias={"7": -100, "3": 1}).sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (2.0, -2.0)
    assert sampling.logit_bias == ((3, 1.0), (7, -100.0))
    neutral = chat(presence_penalty=0, frequency_penalty=0.0, logit_bias={}, n=1)
    assert neutral == chat(presence_penalty=None, frequency_penalty=None, logit_bias=None, n=None)
    assert not neutral.sampling.has_penalties


@pytest.mark.parametrize(("parse", "param"), [(parse_chat, "messages"), (parse_completion, "prompt")])
def test_a_body_without_a_prompt_says_so(parse: Any, param: str) -> None:
    with pytest.raises(BadRequest, match="is missing") as caught:
        parse({"model": "m"})
    assert caught.value.param == param
    assert caught.value.code == "missing_required_parameter"


def test_an_absent_model_is_left_to_the_caller() -> None:
    assert parse_chat({"messages": _ASK}).model is None


def test_both_token_limits_may_agree_but_not_differ() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert chat(max_completion_tokens=5).max_tokens == 5
    error = refused(max_tokens=5, max_completion_tokens=6)
    assert "5" in error.message
    assert "6" in error.message


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(None, ()), ([], ()), ("x", ("x",)), (["a", "b", "c", "d"], ("a", "b", "c", "d")), ("y" * 10_000,) * 2],
)
def test_stop_texts(stop: object, expected: object) -> None:
    assert chat(stop=stop).stop == ((expected,) if isinstance(expected, str) else expected)


def test_seeds_are_sixty_four_bits_and_negative_ones_are_ordinary() -> None:
    seeds = [0, 1, -1, -2, 2**63 - 1, -(2**63)]
    read = [chat(seed=seed).sampling.seed for seed in seeds]
    assert len(set(read)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in read)
    assert chat(seed=0).is_seeded
    assert not chat(seed=None).is_seeded


def test_temperature_bounds_are_inclusive_and_integers_are_numbers() -> None:
    assert chat(temperature=0).sampling.temperature == 0.0
    assert chat(temperature=2).sampling.temperature == 2.0
    assert chat(temperature=1e-4).sampling.temperature == 1e-4


def test_stream_options_need_a_stream() -> None:
    assert refused(stream_options={"include_usage": True}).param == "stream_options"
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={"include_usage": False}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert refused(stream=True, stream_options={"x": 1}).param == "stream_options.x"
    assert chat(stream=True, stream_options={"include_obfuscation": False}).stream
    padded = refused(stream=True, stream_options={"include_obfuscation": True})
    assert (padded.param, padded.code) == ("stream_options.include_obfuscation", "unsupported_parameter")


def test_huge_numbers_are_refused_without_being_printed() -> None:
    error = refused(max_tokens=-(10**4000))
    assert error.param == "max_tokens"
    assert len(error.message) < 200
