"""A stream that waits for a lost stage is kept open by comments, which no client takes for text."""

from __future__ import annotations

from shoal.core.placement import Epoch, Placement, WorkerId
from tests.support.served_pipeline import MODEL, Served, served_digests
from tests.support.sse_answer import stream_answer

BODY = {"model": MODEL, "prompt": "the tide", "max_tokens": 300, "seed": 3, "ignore_eos": True}


def restore(served: Served) -> None:
    """Route the pipeline through all workers again."""
    before = served.driver._placement
    assert before is not None
    limits = {
        stage.worker: worker._engine.limits
        for stage, worker in zip(before.stages, served.workers, strict=True)
    }
    served.driver.set_placement(Placement(Epoch(before.epoch + 1), before.stages), limits, 1 << 28)


def test_comments_bridge_the_silence_while_a_stage_has_no_owner() -> None:
    with served_digests(keep_alive_s=0.02) as served:
        unbroken = stream_answer(served.url, BODY)

        def on_text(num_texts: int) -> None:
            if num_texts == 5:
                served.driver.lose_worker(WorkerId("w1"))

        def on_comment(num_comments: int) -> None:
            if num_comments == 3:
                restore(served)

        answer = stream_answer(served.url, BODY, on_text, on_comment)

    assert answer.choices == unbroken.choices
    assert answer.is_done
    assert answer.num_comments >= 3
