"""Messages: roles, text parts, and errors that name the place."""

from __future__ import annotations

import pytest

from shoal.core.errors import BadRequest
from shoal.gateway.chat_messages import read_messages


def refused(messages: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read_messages(messages)
    return caught.value


def test_roles_keep_their_order_and_developer_is_system() -> None:
    roles = ("developer", "user", "assistant", "system", "user")
    read = read_messages([{"role": role, "content": "x"} for role in roles])
    assert [message["role"] for message in read] == ["system", "user", "assistant", "system", "user"]


def test_text_parts_are_joined_in_order() -> None:
    parts = [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]
    assert read_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "One two"}]


@pytest.mark.parametrize("messages", [None, 5, "hi", {}])
def test_messages_that_are_no_list_are_refused(messages: object) -> None:
    assert refused(messages).param == "messages"


def test_an_empty_list_has_openais_code() -> None:
    error = refused([])
    assert (error.param, error.code) == ("messages", "empty_array")


@pytest.mark.parametrize("content", ["", None, [], [{"type": "text", "text": ""}]])
def test_an_empty_last_message_is_refused(content: object) -> None:
    error = refused([{"role": "user", "content": "x"}, {"role": "user", "content": content}])
    assert error.param == "messages"
    assert "messages[1]" in error.message


def test_an_empty_answer_in_the_middle_is_kept() -> None:
    messages = [{"role": "assistant", "content": None}, {"role": "user", "content": "x"}]
    assert read_messages(messages)[0] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("message", "param", "word"),
    [
        ("hi", "messages[0]", "object"),
        ({"content": "x"}, "messages[0].role", "missing"),
        ({"role": "wizard", "content": "x"}, "messages[0].role", "'wizard' is not a role"),
        ({"role": 5, "content": "x"}, "messages[0].role", "int"),
        ({"role": [], "content": "x"}, "messages[0].role", "list"),
        ({"role": "tool", "content": "x"}, "messages[0].role", "not supported yet"),
        ({"role": "user", "content": 5}, "messages[0].content", "string"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content", "string"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]", "object"),
        ({"role": "user", "content": [{}]}, "messages[0].content[0]", "no type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "string"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]},
            "messages[0].content[0].y",
            "y",
        ),
        ({"role": "user", "content": "x", "name": "Bob"}, "messages[0].name", "not supported"),
        ({"role": "user", "content": "x", "colour": None}, "messages[0].colour", "not supported"),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{}]},
            "messages[0].tool_calls",
            "not supported",
        ),
    ],
)
def test_errors_name_the_place(message: object, param: str, word: str) -> None:
    error = refused([message])
    assert error.param == param
    assert word in error.message


def test_an_image_part_is_named() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = refused([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}])
    assert error.param == "messages[0].content[1]"
    assert "image_url" in error.message


def test_an_answer_as_the_client_prints_it_is_taken_back() -> None:
    message: dict[str, object] = {"role": "assistant", "content": "x", "refusal": None, "annotations": []}
    message["tool_calls"] = None
    assert read_messages([message]) == [{"role": "assistant", "content": "x"}]
