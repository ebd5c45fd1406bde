"""Room in SGLang's pools: for the draft's context, and for slots reserved past a sequence's end."""

from functools import cache
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_spec

from dflash_core.checkpoint.load import survey_checkpoint

SIZING = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"
CONFIGURATOR = "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator.__init__"


def register_hooks() -> None:
    """Called once a process, before SGLang applies its hooks."""
    HookRegistry.register(SIZING, widen_rows, HookType.AFTER)
    HookRegistry.register(CONFIGURATOR, count_context, HookType.AFTER)


def widen_rows(extra: int) -> int:
    """Slots a row of SGLang's table needs past the context length.

    SGLang reserves two cycles' slots ahead of a sequence, also of one that is about to reach the context
    length, but makes room for one cycle's only.
    """
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_page_size, get_alloc_reserve_per_decode

    if not ours():
        return extra
    return max(extra, int(get_alloc_reserve_per_decode() + get_alloc_page_size()) - 1)


def count_context(result: None, configurator: Any, configuration: Any, *_: Any, **__: Any) -> None:
    """Add the draft's context to the bytes of a slot, from which SGLang works out how many slots fit."""
    if ours() and not configuration.is_draft_worker:
        dtype = configuration.model_config.dtype
        configurator._cell_size += context_bytes(get_spec().speculative_draft_model_path, dtype.itemsize)


@cache
def context_bytes(draft: str, itemsize: int) -> int:
    """Bytes of one position in the draft's context."""
    spec = survey_checkpoint(draft).spec
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * itemsize


def ours() -> bool:
    """Whether this server decodes with DFLASH_CORE."""
    return str(get_spec().speculative_algorithm).upper() == "DFLASH_CORE"
