"""One real token, before a pipeline is called ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.core.errors import ClusterError, ShoalError
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.pipeline.driver import Driver
from shoal.pipeline.tokenizer import Tokenizer

WARM_UP_DEADLINE_S = 120.0


async def produce_one_token(driver: Driver, tokenizer: Tokenizer, worker_logs: Path) -> None:
    """Answer one request before anybody else's: what is called ready has worked once.

    Raises ClusterError saying why no token came.
    """
    prompt = tokenizer.encode("Hello", add_special=True, parse_special=False)
    request = GenerateRequest(
        request_id="warm-up",
        prompt_tokens=tuple(prompt),
        max_tokens=1,
        sampling=SamplingParams(temperature=0.0),
        ignore_eog=True,
    )
    try:
        async with asyncio.timeout(WARM_UP_DEADLINE_S):
            async for event in driver.generate(request):
                if isinstance(event, Finished) and event.completion_tokens == 1:
                    return
    except TimeoutError:
        cause = f"nothing came within {WARM_UP_DEADLINE_S:.0f} s"
    except ShoalError as error:
        cause = error.message
    else:
        cause = "the answer ended without a token"
    raise ClusterError(
        f"All slices are loaded, but no first token was produced: {cause.rstrip('.')}.",
        next_step=f"Read the workers' logs in {worker_logs}.",
    )
