"""`block_attention` by torch's fused routine, where everything is visible to everybody."""

import torch
from torch import Tensor
from torch.nn import functional as F


def fits(
    q: Tensor,
    k_pool: Tensor,
    lengths: Tensor | None,
    block_lengths: Tensor | None,
    reach: int,
    window: int | None,
    causal: bool,
    sinks: Tensor | None,
) -> bool:
    """Whether the shapes alone say that no key is hidden, and float32 is what there is anyway.

    Args:
        reach: keys a query, context and block.
    """
    return (
        q.is_cpu
        and q.dtype == torch.float32
        and k_pool.dtype == torch.float32
        and lengths is None
        and block_lengths is None
        and (window is None or reach <= window)
        and not causal
        and sinks is None
    )


def block_attention(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor, k: Tensor, v: Tensor, scale: float
) -> Tensor:
    """See `reference.block_attention`: every query sees all T + S keys of its row."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        _beside(k_pool, slots, k),
        _beside(v_pool, slots, v),
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def _beside(pool: Tensor, slots: Tensor, own: Tensor) -> Tensor:
    """The pool's slots [B, T] and the block's own [B, S, Hkv, d] as [B, Hkv, T + S, d]."""
    batch, context = slots.shape
    taken = pool.index_select(0, slots.flatten()).view(batch, context, *pool.shape[1:])
    return torch.cat([taken, own], 1).transpose(1, 2)
