"""What follows from a tree's parents. Nodes stand in breadth-first order, as `TokenTree` describes."""

import torch
from torch import Tensor


def ancestors(parents: Tensor, max_depth: int) -> Tensor:
    """Which nodes each node sees: itself and its ancestors.

    Args:
        parents: [B, N] int64; -1 for the root and for padding, which sees only itself.
        max_depth: host integer, an upper bound of the depths.

    Returns:
        [B, N, N] bool.
    """
    batch, width = parents.shape
    itself = torch.arange(width, device=parents.device).expand(batch, -1)
    up = torch.where(parents < 0, itself, parents)
    path = [itself]
    for _ in range(max_depth):
        path.append(up.gather(1, path[-1]))
    visible = torch.zeros(batch, width, width, dtype=torch.bool, device=parents.device)
    return visible.scatter_(2, torch.stack(path, 2), True)


def child_ptr(parents: Tensor, num_nodes: Tensor) -> Tensor:
    """CSR row pointers: the children of node i are nodes ptr[i] to ptr[i + 1] - 1.

    Args:
        parents: [B, N] int64.
        num_nodes: [B] int64; nodes from there on are padding.

    Returns:
        [B, N + 1] int64; the root, a child of nobody, is node 0, so ptr starts at 1.
    """
    real = torch.arange(parents.shape[1], device=parents.device) < num_nodes[:, None]
    counts = torch.zeros_like(parents)
    counts.scatter_add_(1, parents.clamp(min=0), (real & (parents >= 0)).long())
    return torch.cat([torch.ones_like(counts[:, :1]), counts], 1).cumsum(1)


def accepted_path(
    edges: Tensor, depths: Tensor, visible: Tensor, num_nodes: Tensor, max_depth: int
) -> tuple[Tensor, Tensor]:
    """The path from the root along which all edges hold.

    Args:
        edges: [B, N] bool, whether the edge from its parent to each node holds; the root's is not looked at.
            Of the edges to the children of one node, at most one holds.
        depths: [B, N] int64.
        visible: [B, N, N] bool.
        num_nodes: [B] int64.
        max_depth: host integer, an upper bound of `depths`; A = max_depth + 1.

    Returns:
        accepted: [B] int64, the edges of the path.
        nodes: [B, A] int64, its nodes from the root on, then -1.
    """
    places = torch.arange(edges.shape[1], device=edges.device)
    holds = (edges | (places == 0)) & (places < num_nodes[:, None])
    reached = (~visible | holds[:, None, :]).all(-1)  # [B, N]
    nodes = torch.full((len(edges), max_depth + 1), -1, dtype=torch.int64, device=edges.device)
    nodes = nodes.scatter_reduce(1, depths, torch.where(reached, places, -1), "amax")
    return reached.sum(-1) - 1, nodes
