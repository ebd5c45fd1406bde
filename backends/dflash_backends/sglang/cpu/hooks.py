"""Replacements for the few SGLang functions on the path that launch Triton kernels without asking."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from dflash_backends.sglang.cpu.slots import assign_slots


def register_hooks() -> None:
    """Called once a process, before SGLang applies its hooks."""
    HookRegistry.register(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func", assign_slots, HookType.REPLACE
    )
