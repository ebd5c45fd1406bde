"""Specification of `selector_walk`."""

from torch import Tensor

from dflash_kernels.walk import walk


def selector_walk(
    unary: Tensor,
    ids: Tensor,
    hidden: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    anchors: Tensor,
    temperature: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Score slot s's candidates given the token picked at slot s - 1, pick one, go on.

    The score of candidate b after token a is `unary(b) + <A[a] * hidden, B[b]>`. Picks are sequential by
    nature; everything that is not (gathering and weighting candidates) is done for all slots at once.

    Args:
        unary: [B, S, K] floats, the candidates' own logits.
        ids: [B, S, K] int64, their target ids.
        hidden: [B, S, R], the projected hidden state of every slot.
        predecessors, successors: [V, R], the codebooks A and B.
        anchors: [B] int64, the token before slot 0.
        temperature: [B] float32; `None` is all greedy. Rows at 0 are greedy.
        uniforms: [B, S] float64 in [0, 1), the noise of every slot; given with `temperature`.

    Returns:
        picks: [B, S] int64, indices of candidates.
        scores: [B, S, K] float32; what slot s was picked from is their softmax at the row's temperature.

    Source: DFlash2 (z-lab and Inco AI, August 2026).
    """
    weighted = successors[ids].float() * hidden.float()[:, :, None]  # [B, S, K, R]
    unary = unary.float()

    def score(slot: int, before: Tensor) -> Tensor:
        pull = weighted[:, slot] @ predecessors[before].float()[..., None]  # [B, K, 1]
        return unary[:, slot] + pull[..., 0]

    return walk(ids, anchors, score, temperature, uniforms)
