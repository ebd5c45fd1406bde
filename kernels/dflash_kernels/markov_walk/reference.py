"""Specification of `markov_walk`."""

from torch import Tensor

from dflash_kernels.walk import walk


def markov_walk(
    unary: Tensor,
    ids: Tensor,
    before: Tensor,
    after: Tensor,
    anchors: Tensor,
    temperature: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Score slot s's tokens given the one picked at slot s - 1, pick one, go on.

    The logit of token b after token a is `unary(b) + <W1[a], W2[b]>`. It is computed for the tokens offered:
    all that a head knows, or the likeliest of each slot. With few of them, what a block costs is a few rows
    of W2 and not all of W2 once a slot, and what is picked, or drawn, is so among those few.

    Args:
        unary: [B, S, K] floats, the logits of the tokens offered in every slot, without what came before.
        ids: [B, S, K] int64, their target ids.
        before, after: [V, R], the tables W1 and W2.
        anchors: [B] int64, the token before slot 0.
        temperature: [B] float32; `None` is all greedy. Rows at 0 are greedy.
        uniforms: [B, S] float64 in [0, 1), the noise of every slot; given with `temperature`.

    Returns:
        picks: [B, S] int64, indices into the K tokens offered.
        scores: [B, S, K] float32; what slot s was picked from is their softmax at the row's temperature.

    Source: DSpark (arXiv 2607.05147), the vanilla Markov head; offering the likeliest only is ours.
    """
    offered = after[ids].float()  # [B, S, K, R]
    unary = unary.float()

    def score(slot: int, tokens: Tensor) -> Tensor:
        pull = offered[:, slot] @ before[tokens].float()[..., None]  # [B, K, 1]
        return unary[:, slot] + pull[..., 0]

    return walk(ids, anchors, score, temperature, uniforms)
