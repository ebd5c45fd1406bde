"""`block_attention` by torch's fused routine, for a single row whose queries see everything."""

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_kernels.block_attention.reference import all_visible, gather


def fits(
    q: Tensor,
    k_pool: Tensor,
    slots: Tensor,
    k: Tensor,
    lengths: Tensor | None,
    block_lengths: Tensor | None,
    window: int | None,
    causal: bool,
    sinks: Tensor | None,
) -> bool:
    """Whether there is one row of which no key is hidden, and float32 is what there is anyway.

    Several rows are left to the reference, so that a row's result does not depend on whether those beside it
    are as long.
    """
    keys = slots.shape[1] + k.shape[1]
    return (
        len(q) == 1
        and q.is_cpu
        and q.dtype == torch.float32
        and k_pool.dtype == torch.float32
        and sinks is None
        and all_visible(keys, lengths, block_lengths, window, causal)
    )


def block_attention(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor, k: Tensor, v: Tensor, scale: float
) -> Tensor:
    """See `reference.block_attention`: every query sees all T + S keys of its row."""
    keys, values = (
        torch.cat([gather(pool, slots), own], 1).transpose(1, 2) for pool, own in ((k_pool, k), (v_pool, v))
    )
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, scale=scale, enable_gqa=q.shape[2] != k.shape[2]
    )
    return out.transpose(1, 2)
