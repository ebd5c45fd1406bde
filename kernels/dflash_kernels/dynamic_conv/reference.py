"""Specification of `dynamic_conv`."""

import torch
from torch import Tensor
from torch.nn import functional as F


def dynamic_conv(x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
    """Mix every slot with the K - 1 slots before it: `y[s] = sum_o (base[o] + dynamic[s, o]) * x[s - o]`.

    Slots before the block count as zero, and no slot reads a later one.

    Args:
        x: [B, S, D] floats.
        dynamic: [B, S, K, G], the part of the kernel that depends on the slot, shared by the D / G
            neighbouring channels of a group.
        base: [K, D], the part that does not.

    Returns:
        [B, S, D] in the dtype of `x`, computed in float32.

    Source: DFlash2 (z-lab and Inco AI, August 2026).
    """
    slots = x.shape[1]
    size, groups = dynamic.shape[2:]
    width = x.shape[-1] // groups
    kernel = base.float().view(size, groups, width) + dynamic.float()[..., None]  # [B, S, K, G, D / G]
    padded = F.pad(x.float(), (0, 0, size - 1, 0))
    before = torch.stack([padded[:, size - 1 - o : size - 1 - o + slots] for o in range(size)], 2)
    return (kernel.flatten(-2) * before).sum(2).to(x.dtype)
