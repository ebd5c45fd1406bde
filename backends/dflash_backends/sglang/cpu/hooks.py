"""Replacements for the few things on SGLang's path that need a GPU without asking whether there is one."""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from dflash_backends.sglang.cpu.slots import assign_slots


def register_hooks() -> None:
    """Called once a process, before SGLang applies its hooks."""
    HookRegistry.register(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func", assign_slots, HookType.REPLACE
    )
    torch.Tensor.record_stream = no_stream  # type: ignore[method-assign, assignment]


def no_stream(tensor: torch.Tensor, stream: object) -> None:
    """A CPU tensor is used by no other stream; torch refuses to hear of one, and SGLang tells it."""
