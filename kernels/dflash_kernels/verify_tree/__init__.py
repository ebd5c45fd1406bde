"""Verification of trees against a token that the target chose at every node."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.verify_tree import reference

__all__ = ["verify_tree"]

_IMPLS = {"reference": reference.verify_tree}


def verify_tree(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    visible: Tensor,
    num_nodes: Tensor,
    choice: Tensor,
    *,
    max_depth: int,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the target's choices from the root as long as the tree has them.

    Where `choice` is drawn from the target's distributions, what comes out is a sample of the target: a tree
    only says which of its draws were computed in time.

    Args:
        tokens, parents, depths: [B, N] int64, as in `TokenTree`: node 0 is the root, whose parent is -1.
            Children of one node have different tokens.
        visible: [B, N, N] bool; row n marks n and its ancestors.
        num_nodes: [B] int64; nodes from there on are padding.
        choice: [B, N] int64, the target's token after each node.
        max_depth: host integer, an upper bound of `depths`; A = max_depth + 1.

    Returns:
        accepted: [B] int64, drafts accepted, 0 to A - 1.
        nodes: [B, A] int64, the root and the accepted nodes in order, then -1.
        tokens: [B, A] int64, the accepted drafts and the choice after the last of them, then -1.

    Source: the walk of DDTree (arXiv 2604.12989), for all nodes at once.
    """
    run = choose("verify_tree", impl, choice, _IMPLS)
    return run(tokens, parents, depths, visible, num_nodes, choice, max_depth)
