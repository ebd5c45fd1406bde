"""The best tree of a given size from what a draft says of a block."""

from typing import NamedTuple

from torch import Tensor

from dflash_kernels.build_tree import host, reference
from dflash_kernels.dispatch import Impl, choose

__all__ = ["BuiltTree", "build_tree"]


class BuiltTree(NamedTuple):
    """A batch of trees in breadth-first order; W = max_budget + 1 nodes, the anchor first.

    Attributes:
        tokens: [B, W] int64; 0 for padding.
        parents: [B, W] int64; -1 for the anchor and for padding.
        depths: [B, W] int64; 0 for the anchor and for padding.
        visible: [B, W, W] bool.
        num_nodes: [B] int64.
        log_probs: [B, W] float32, of each node's own token, after its parent's where that was told; 0 for the
            anchor and for padding.
        ranks: [B, W] int64; 0 for the anchor, else the least budget that takes in the node; 0 for padding.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor
    num_nodes: Tensor
    log_probs: Tensor
    ranks: Tensor


_IMPLS = {"reference": reference.build_tree, "host": host.build_tree}


def build_tree(
    anchors: Tensor,
    log_probs: Tensor,
    ids: Tensor,
    budgets: Tensor,
    max_budget: int,
    choice: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> BuiltTree:
    """The `budgets` most probable paths below the anchor.

    A token's probability may depend on the candidate before it. Then `choice` says which candidate of its
    depth each entry is, and so where the path goes on; without it the depths are independent, and entry k is
    candidate k.

    The probability of a path only falls along an edge to a child or to the next sibling, so the best nodes
    are a tree. Of equally probable paths the shorter ones come first, then the one whose parent does, then
    the one of the smaller rank.

    Args:
        anchors: [B] int64.
        log_probs: [B, D, K] floats of at most 0, the K best of each depth, best first; a path with -inf in it
            is left out, which is how a request gets fewer depths than D. With `choice` [B, D, C, K]: the K
            best after each of the C candidates of the depth before. At depth 0 row 0 follows the anchor, and
            the other rows are not looked at.
        ids: [B, D, K] int64, the candidates' tokens, different ones within a depth; with `choice` [B, D, C].
        budgets: [B] int64, 0 to max_budget: nodes besides the anchor. There may be fewer paths than that.
        max_budget: host integer.
        choice: [B, D, C, K] int64, 0 to C - 1, different ones within a row.

    Raises:
        ValueError: log_probs have another number of dimensions than belongs to `choice`.

    Source: DDTree (arXiv 2604.12989), whose heap is replaced by one selection a depth. There the depths are
    independent; probabilities that depend on the candidate before are ours.
    """
    wanted = 3 if choice is None else 4
    if log_probs.dim() != wanted:
        raise ValueError(
            f"log_probs have {log_probs.dim()} dimensions; {wanted} are needed "
            f"{'without' if choice is None else 'with'} a choice."
        )
    if impl == "auto" and log_probs.is_cpu and len(anchors) * max_budget <= host.MOST:
        impl = "host"
    run = choose("build_tree", impl, log_probs, _IMPLS)
    return BuiltTree(*run(anchors, log_probs, ids, budgets, max_budget, choice))
