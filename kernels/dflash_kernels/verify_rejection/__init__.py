"""Verification of drafts that were drawn from known distributions."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.verify_rejection import reference

__all__ = ["verify_rejection"]

_IMPLS = {"reference": reference.verify_rejection}


def verify_rejection(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    visible: Tensor,
    num_nodes: Tensor,
    probs: Tensor,
    draft_ids: Tensor,
    draft_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    max_depth: int,
    max_children: int,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept drafts such that what is committed is distributed as the target's own samples.

    The children of a node, in node order, are draws without replacement: each is drawn from the node's draft
    distribution q without its elder siblings. A child x is accepted with probability min(1, p(x) / q(x));
    when it is refused, p becomes the normalised max(p - q, 0), q loses x, and the next child is tried. After
    the last child, or at a leaf, the token is drawn from what p has become. A chain is the case of one child.

    The noise of a decision is `uniform(seed, position of the token it decides)`, in the stream
    `ACCEPT + STREAMS * rank` for the child of that rank. The final draw uses `RESIDUAL` after a refusal, and
    `TARGET`, as plain sampling does, at a node without children.

    Args:
        tokens, parents, depths: [B, N] int64, as in `TokenTree`; children of one node have different tokens.
        visible: [B, N, N] bool.
        num_nodes: [B] int64; nodes from there on are padding.
        probs: [B, N, V] float32, the target's distribution after each node; one-hot for a greedy request.
        draft_ids: [B, N, K] int64, different ids in a row; the candidates that the children of each node were
            drawn from.
        draft_probs: [B, N, K] float32, their probabilities q.
        seeds: [B] int64.
        positions: [B] int64, of the anchors.
        max_depth: host integer, an upper bound of `depths`; A = max_depth + 1.
        max_children: host integer, an upper bound of the children of a node.

    Returns:
        accepted: [B] int64, drafts accepted, 0 to A - 1.
        nodes: [B, A] int64, the root and the accepted nodes in order, then -1.
        tokens: [B, A] int64, the accepted drafts and the final draw, then -1.

    Source: Leviathan et al. 2023, section 2.3; for siblings, Jeon et al. 2024 (arXiv 2402.14160).
    """
    run = choose("verify_rejection", impl, probs, _IMPLS)
    return run(
        tokens,
        parents,
        depths,
        visible,
        num_nodes,
        probs,
        draft_ids,
        draft_probs,
        seeds,
        positions,
        max_depth,
        max_children,
    )
