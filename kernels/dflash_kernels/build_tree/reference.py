"""Reference of `build_tree`."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from dflash_kernels.build_tree.paths import Paths, best_paths
from dflash_kernels.trees import ancestors


def build_tree(
    anchors: Tensor,
    log_probs: Tensor,
    ids: Tensor,
    budgets: Tensor,
    max_budget: int,
    choice: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Choose the best paths of all depths, then put them into breadth-first order."""
    depth = min(log_probs.shape[1], max_budget)
    log_probs, ids = log_probs.float()[:, :depth, ..., :max_budget], ids[:, :depth]
    choice = None if choice is None else choice[:, :depth, ..., :max_budget]
    if log_probs.numel() == 0:
        log_probs = log_probs.new_full((len(anchors), 1, 1), float("-inf"))
        ids, choice = ids.new_zeros(len(anchors), 1, 1), None
    paths = best_paths(log_probs, choice, max(max_budget, 1))
    ranks = _ranks(paths)
    chosen = (ranks <= budgets[:, None]) & (paths.score > float("-inf"))
    order, real = _breadth_first(paths, chosen, max_budget)

    nodes = torch.arange(1, order.shape[1] + 1, device=order.device)
    node_of = torch.zeros_like(paths.entry).scatter(1, order, nodes.expand_as(order))
    depths = paths.depth[order]
    parents = node_of.gather(1, paths.parent.gather(1, order)).masked_fill(depths == 1, 0)
    entry = paths.entry.gather(1, order)
    place = (depths - 1) * log_probs[0, 0].numel() + entry
    candidate = entry if choice is None else choice.flatten(1).gather(1, place)
    tokens = ids.flatten(1).gather(1, (depths - 1) * ids.shape[2] + candidate)

    def nodewise(root: Tensor, values: Tensor, fill: int) -> Tensor:
        """[B, W]: the root's value, the chosen paths' values, and the filling."""
        values = torch.cat([root[:, None], values.masked_fill(~real, fill)], 1)
        return pad(values, (0, max_budget + 1 - values.shape[1]), value=fill)

    zero = torch.zeros_like(anchors)
    parents = nodewise(zero - 1, parents, -1)
    return (
        nodewise(anchors, tokens, 0),
        parents,
        nodewise(zero, depths, 0),
        ancestors(parents, depth),
        1 + real.sum(-1),
        nodewise(zero.float(), log_probs.flatten(1).gather(1, place), 0),
        nodewise(zero, ranks.gather(1, order), 0),
    )


def _ranks(paths: Paths) -> Tensor:
    """[B, M] int64: the place of each path among all, from 1 for the best."""
    order = paths.score.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, places)


def _breadth_first(paths: Paths, chosen: Tensor, max_budget: int) -> tuple[Tensor, Tensor]:
    """Indices [B, min(M, max_budget)] of the chosen paths in breadth-first order, and which are real."""
    total = chosen.shape[1]
    place = (paths.depth * total + paths.order).masked_fill(~chosen, torch.iinfo(torch.int64).max)
    order = place.argsort(dim=1)[:, :max_budget]
    return order, chosen.gather(1, order)
