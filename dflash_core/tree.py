"""Token trees. Node 0 is the anchor; a chain is the tree with one branch."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenTree:
    """A batch of ragged token trees, padded to N nodes.

    Nodes stand in breadth-first order: parents before children, siblings side by side, best first, so
    that the children of a node are one interval and `child_ptr` alone is the tree in CSR.
    Padding nodes (index >= `num_nodes`) have parent -1, depth 0, token 0, and see only themselves.

    Attributes:
        tokens: [B, N] int64.
        parents: [B, N] int64; -1 for the root.
        depths: [B, N] int64; 0 for the root. The position of a node is the anchor's position + depth.
        visible: [B, N, N] bool; `visible[b, i, j]` says that node i sees node j (itself and its ancestors).
        num_nodes: [B] int64.
        max_depth: host integer, an upper bound of `depths`.
        is_chain: host flag: every node's parent is the node before it.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor
    num_nodes: Tensor
    max_depth: int
    is_chain: bool

    @property
    def width(self) -> int:
        """N, padding included."""
        return self.tokens.shape[1]

    def child_ptr(self) -> Tensor:
        """CSR row pointers [B, N + 1]: the children of node i are nodes `child_ptr[i]` to `child_ptr[i + 1] - 1`."""
        nodes = torch.arange(self.width, device=self.tokens.device)
        real = nodes < self.num_nodes[:, None]
        counts = torch.zeros_like(self.parents)
        counts.scatter_add_(1, self.parents.clamp(min=0), (real & (self.parents >= 0)).long())
        first = torch.ones_like(counts[:, :1])
        return torch.cat([first, counts], 1).cumsum(1)


def chain(tokens: Tensor, num_nodes: Tensor) -> TokenTree:
    """A chain a request.

    Args:
        tokens: [B, S] int64, the anchor first.
        num_nodes: [B] int64, 1 to S: how many of them are verified.
    """
    batch, width = tokens.shape
    nodes = torch.arange(width, device=tokens.device)
    real = nodes < num_nodes[:, None]  # [B, S]
    below = nodes[None, :] <= nodes[:, None]  # [S, S]
    itself = nodes[None, :] == nodes[:, None]
    visible = torch.where(real[:, :, None], below, itself)
    return TokenTree(
        tokens=tokens.masked_fill(~real, 0),
        parents=torch.where(real, nodes - 1, -1),
        depths=torch.where(real, nodes, 0),
        visible=visible,
        num_nodes=num_nodes,
        max_depth=width - 1,
        is_chain=True,
    )
