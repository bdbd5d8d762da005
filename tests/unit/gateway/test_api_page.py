"""docs/API.md says of every field what the code does with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.gateway.body_fields import AnswerBody, ChatBody, CompletionBody
from shoal.gateway.neutral_fields import CHAT, COMPLETION, LABELS

PAGE = (Path(__file__).parents[3] / "docs" / "API.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([\w, ]+) \|", re.MULTILINE)


def documented(heading: str) -> dict[str, str]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(ROW.findall(section))


@pytest.mark.parametrize(
    ("heading", "body", "neutral"),
    [("`/v1/chat/completions`", ChatBody, CHAT), ("`/v1/completions`", CompletionBody, COMPLETION)],
)
def test_the_page_lists_every_field_as_the_code_treats_it(
    heading: str, body: type[AnswerBody], neutral: dict[str, object]
) -> None:
    listed = documented("Both endpoints") | documented(heading)
    assert {field for field, status in listed.items() if status == "works"} == set(body.model_fields)
    assert {field for field, status in listed.items() if status == "400"} == set(neutral)
    assert {field for field, status in listed.items() if status == "accepted, not used"} == set(LABELS)
