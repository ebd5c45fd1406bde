"""Replacements for the few things on SGLang's path that need a GPU without asking whether there is one."""

from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from dflash_backends.sglang.cpu.slots import assign_slots

SLOTS = "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func"
ARGUMENTS = "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs"


def register_hooks() -> None:
    """Called once a process, before SGLang applies its hooks."""
    HookRegistry.register(SLOTS, assign_slots, HookType.REPLACE)
    HookRegistry.register(ARGUMENTS, keep_dtype, HookType.AFTER)
    torch.Tensor.record_stream = no_stream  # type: ignore[method-assign, assignment]


def no_stream(tensor: torch.Tensor, stream: object) -> None:
    """A CPU tensor is used by no other stream; torch refuses to hear of one, and SGLang tells it."""


def keep_dtype(arguments: dict[str, Any], runner: Any, forward_batch: Any, *_: Any) -> dict[str, Any]:
    """Give a model its batch's embeddings as they are: SGLang makes bfloat16 of them, whatever the model is.

    Its own DFLASH embeds its drafts before it calls their model, and this platform runs in float32.
    """
    embeds = forward_batch.input_embeds
    if embeds is None or forward_batch.replace_embeds is not None:
        return arguments
    return {**arguments, "input_embeds": embeds.to(runner.dtype)}
