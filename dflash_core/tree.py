"""Token trees. Node 0 is the anchor; a chain is the tree with one branch."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dflash_kernels.build_tree import build_tree
from dflash_kernels.trees import ancestors, child_ptr


@dataclass(frozen=True)
class TokenTree:
    """A batch of ragged token trees, padded to N nodes.

    Nodes stand in breadth-first order: parents before children, siblings side by side, best first, so
    that the children of a node are one interval and `child_ptr` alone is the tree in CSR. Siblings have
    different tokens.
    Padding nodes (index >= `num_nodes`) have parent -1, depth 0, token 0, and see only themselves.

    Attributes:
        tokens: [B, N] int64.
        parents: [B, N] int64; -1 for the root.
        depths: [B, N] int64; 0 for the root. The position of a node is the anchor's position + depth.
        visible: [B, N, N] bool; `visible[b, i, j]` says that node i sees node j (itself and its ancestors).
        num_nodes: [B] int64.
        max_depth: host integer, an upper bound of `depths`.
        is_chain: host flag: every node's parent is the node before it.
        ranks: [B, N] int64, the order in which a growing budget takes in the nodes: those of rank 1 to n are
            the tree of budget n; 0 for the root and for padding. `None` when they stand in that order.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor
    num_nodes: Tensor
    max_depth: int
    is_chain: bool
    ranks: Tensor | None = None

    @property
    def width(self) -> int:
        """N, padding included."""
        return self.tokens.shape[1]

    def child_ptr(self) -> Tensor:
        """CSR row pointers [B, N + 1]: node i's children are nodes `ptr[i]` to `ptr[i + 1] - 1`."""
        return child_ptr(self.parents, self.num_nodes)


class Chain(TokenTree):
    """The tree of one branch. Its shape is known, and worked out for those who ask: an engine that verifies
    chains by itself never does."""

    _nodes: Tensor
    _real: Tensor

    def __init__(self, tokens: Tensor, num_nodes: Tensor) -> None:
        nodes = torch.arange(tokens.shape[1], device=tokens.device)
        real = nodes < num_nodes[:, None]
        fields = {
            **{"tokens": tokens.where(real, 0), "num_nodes": num_nodes, "_nodes": nodes, "_real": real},
            **{"max_depth": len(nodes) - 1, "is_chain": True, "ranks": None},
        }
        self.__dict__.update(fields)  # the class is frozen

    @cached_property
    def parents(self) -> Tensor:
        return torch.where(self._real, self._nodes - 1, -1)

    @cached_property
    def depths(self) -> Tensor:
        return torch.where(self._real, self._nodes, 0)

    @cached_property
    def visible(self) -> Tensor:
        below = self._nodes <= self._nodes[:, None]  # [S, S]
        itself = self._nodes == self._nodes[:, None]
        return torch.where(self._real[:, :, None], below, itself)


def chain(tokens: Tensor, num_nodes: Tensor) -> TokenTree:
    """A chain a request.

    Args:
        tokens: [B, S] int64, the anchor first.
        num_nodes: [B] int64, 1 to S: how many of them are verified.
    """
    return Chain(tokens, num_nodes)


def from_parents(tokens: Tensor, parents: Tensor, num_nodes: Tensor, max_depth: int) -> TokenTree:
    """A tree that is given by its edges.

    Args:
        tokens: [B, N] int64, the anchor first.
        parents: [B, N] int64, in breadth-first order; -1 for the root.
        num_nodes: [B] int64, 1 to N; what stands at later nodes does not matter.
        max_depth: host integer, an upper bound of the depths.
    """
    real = torch.arange(tokens.shape[1], device=tokens.device) < num_nodes[:, None]
    parents = torch.where(real, parents, -1)
    visible = ancestors(parents, max_depth)
    return TokenTree(
        tokens=tokens.masked_fill(~real, 0),
        parents=parents,
        depths=visible.sum(-1) - 1,
        visible=visible,
        num_nodes=num_nodes,
        max_depth=max_depth,
        is_chain=False,
    )


def best_first(
    anchors: Tensor,
    log_probs: Tensor,
    ids: Tensor,
    budgets: Tensor,
    max_budget: int,
    choice: Tensor | None = None,
) -> tuple[TokenTree, Tensor]:
    """The most probable tree of each request's budget.

    Without `choice` the slots of a block are independent; with it a token's probability depends on the
    candidate before it, and entry k of a row is the candidate that `choice` says.

    Args:
        anchors: [B] int64.
        log_probs: [B, D, K] floats, the K best of each depth, best first; -inf for what must not be drafted,
            for instance all of the depths beyond a request's verify length. With `choice` [B, D, C, K], the K
            best after each candidate of the depth before; row 0 of the first depth follows the anchor.
        ids: [B, D, K] int64, their tokens; with `choice` [B, D, C], those of the C candidates.
        budgets: [B] int64, 0 to `max_budget`: nodes besides the anchor.
        max_budget: host integer; all trees are padded to `max_budget + 1` nodes.
        choice: [B, D, C, K] int64.

    Returns:
        The tree, and [B, max_budget + 1] float32: the log-probability of each node's own token (after
        its parent's, with `choice`), 0 for the anchor and for padding.

    Source: DDTree (arXiv 2604.12989) for independent slots; see `build_tree`.
    """
    built = build_tree(anchors, log_probs, ids, budgets, max_budget, choice)
    tree = TokenTree(
        tokens=built.tokens,
        parents=built.parents,
        depths=built.depths,
        visible=built.visible,
        num_nodes=built.num_nodes,
        max_depth=min(log_probs.shape[1], max_budget),
        is_chain=max_budget <= 1 or log_probs.shape[-1] == 1,
        ranks=built.ranks,
    )
    return tree, built.log_probs
