"""The best paths of each depth through a lattice of candidates."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


class Paths(NamedTuple):
    """M paths a request, depth by depth, best first within a depth.

    Attributes:
        depth: [M] int64, from 1.
        parent: [B, M] int64, index of the path without its last token; of no meaning at depth 1.
        rank: [B, M] int64, of the last token among the candidates of its depth.
        score: [B, M] float32, sum of the log-probabilities; -inf for what is no path.
        order: [B, M] int64, the place in breadth-first order among the paths of the same depth.
    """

    depth: Tensor
    parent: Tensor
    rank: Tensor
    score: Tensor
    order: Tensor


def best_paths(log_probs: Tensor, count: int) -> Paths:
    """Keep the `count` best paths of each depth; the best `count` of all are among them.

    Path i of the depth above and rank r, both counted from 0 and best first, are together no better than
    (i + 1) * (r + 1) - 1 other pairs, which leaves few pairs to look at.

    Args:
        log_probs: [B, D, K] float32, best first; K at most `count`.
    """
    batch, depth, ranks = log_probs.shape
    widths = [min(ranks, count // (index + 1)) for index in range(count)]
    ends = list(accumulate(widths))
    pairs = [(index, rank) for index, width in enumerate(widths) for rank in range(width)]
    parents, all_ranks = torch.tensor(pairs, device=log_probs.device).T.contiguous()

    score = log_probs.new_zeros(batch, 1)
    order = torch.zeros_like(score, dtype=torch.int64)
    begin = 0
    levels: list[Paths] = []
    for level in range(depth):
        above = score.shape[1]
        parent, rank = parents[: ends[above - 1]], all_ranks[: ends[above - 1]]
        score = score[:, parent] + log_probs[:, level, rank]
        score, best = (x[:, :count] for x in score.sort(dim=1, descending=True, stable=True))
        parent, rank = parent[best], rank[best]
        place = order.gather(1, parent) * ranks + rank
        order = (place[:, :, None] > place[:, None, :]).sum(-1)
        levels.append(Paths(torch.full_like(place[0], level + 1), parent + begin, rank, score, order))
        begin += above if level else 0
    depths, *rest = zip(*levels, strict=True)
    return Paths(torch.cat(depths), *(torch.cat(tensors, 1) for tensors in rest))
