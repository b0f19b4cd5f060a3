"""The check of some bodies before upstream's code has them: beside the event loop, or in time.

Upstream finishes a request on the event loop, where a long check would keep the whole server from
answering. What has passed is remembered (`check.ProcessorCheck`), so that a long body is checked in
a thread first, and the second look at it is short. And what begins a stream with status 200 cannot
be refused any more as a bad request.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request

from vllm.hf_compat.server.openai import HFBatchChatCompletionRequest, HFRequestBody

_LONG_BODY = 1 << 14  # bytes; what fewer hold is checked in a millisecond
_CHECKER = ThreadPoolExecutor(1, thread_name_prefix="hf_compat-check")
"""One thread: more would leave the event loop less time, and end no earlier."""


def spare_the_loop() -> None:
    """Let the garbage collector pass over what a server has imported, before it takes requests.

    It looks at all of that, for half a second, whenever a long list of lists was parsed.
    """
    gc.collect()
    gc.freeze()


async def check_early(body: Any, raw_request: Request) -> None:
    """Refuse what the engine would refuse later, if the body is long or asks for a stream.

    What depends on the prompt's length is left to the engine.

    Args:
        body: of any class.
        raw_request: its request.

    Raises:
        VLLMValidationError: the refusal.
    """
    if isinstance(body, HFBatchChatCompletionRequest) and body.messages:
        body = body.to_chat_completion_request(body.messages[0])  # all have the same fields
    if not isinstance(body, HFRequestBody):
        return
    if len(await raw_request.body()) > _LONG_BODY:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # it says whether there is to be a receipt
        await loop.run_in_executor(_CHECKER, context.run, _check, body, raw_request.app.state)
    elif body.stream:
        _check(body, raw_request.app.state)


def _check(body: HFRequestBody, state: Any) -> None:
    client = getattr(state, "engine_client", None)  # None if the server only renders prompts
    if client is None:
        return
    defaults = state.openai_serving_completion.default_sampling_params
    params = body.to_sampling_params(client.model_config.max_model_len, defaults)
    client.input_processor.hf_compat.check(params)
    client.input_processor.hf_compat.finish(params, prompt_len=1)
