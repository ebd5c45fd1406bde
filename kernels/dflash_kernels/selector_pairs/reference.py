"""Specification of `selector_pairs`."""

import torch
from torch import Tensor


def selector_pairs(
    unary: Tensor, ids: Tensor, hidden: Tensor, predecessors: Tensor, successors: Tensor, anchors: Tensor
) -> Tensor:
    """Score slot s's candidates after each candidate of slot s - 1.

    The score of candidate b after token a is `unary(b) + <A[a] * hidden, B[b]>`, as in `selector_walk`, which
    looks at one a only. Nothing here waits for a pick, so that it is one batched product.

    Args:
        unary: [B, S, K] floats, the candidates' own logits; S at least 1.
        ids: [B, S, K] int64, their target ids.
        hidden: [B, S, R], the projected hidden state of every slot.
        predecessors, successors: [V, R], the codebooks A and B.
        anchors: [B] int64, the token before slot 0.

    Returns:
        [B, S, K, K] float32: entry [s, a, b] scores candidate b of slot s after candidate a of slot s - 1;
        after the anchor in slot 0, where all rows a are equal.

    Source: DFlash2 (z-lab and Inco AI, August 2026), for the score.
    """
    first = anchors[:, None, None].expand(-1, 1, ids.shape[2])
    before = predecessors[torch.cat([first, ids[:, :-1]], 1)].float()  # [B, S, K, R]
    weighted = successors[ids].float() * hidden.float()[:, :, None]  # [B, S, K, R]
    return unary.float()[:, :, None] + before @ weighted.transpose(-1, -2)
