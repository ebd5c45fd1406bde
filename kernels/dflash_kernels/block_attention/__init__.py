"""Attention of a draft block to its context in the pool and to itself."""

from torch import Tensor

from dflash_kernels.block_attention import fused, reference
from dflash_kernels.dispatch import Impl, choose, with_triton

__all__ = ["block_attention"]

_IMPLEMENTATIONS = with_triton("block_attention", {"reference": reference.block_attention})


def block_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
    starts: Tensor,
    lengths: Tensor | None,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    block_lengths: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
    causal: bool = False,
    sinks: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Ragged attention over pool slots and the block; see `reference.block_attention`."""
    if impl == "auto" and fused.fits(q, k_pool, slots, k, lengths, block_lengths, window, causal, sinks):
        return fused.block_attention(q, k_pool, v_pool, slots, k, v, scale)
    out: Tensor = choose("block_attention", impl, q, _IMPLEMENTATIONS)(
        q,
        k_pool,
        v_pool,
        slots,
        starts,
        lengths,
        k,
        v,
        positions,
        block_lengths,
        scale=scale,
        window=window,
        causal=causal,
        sinks=sinks,
    )
    return out
