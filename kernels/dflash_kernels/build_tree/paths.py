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
        entry: [B, M] int64, the last token's place in the log-probabilities of its depth, flattened.
        score: [B, M] float32, sum of the log-probabilities; -inf for what is no path.
        order: [B, M] int64, the place in breadth-first order among the paths of the same depth.
    """

    depth: Tensor
    parent: Tensor
    entry: Tensor
    score: Tensor
    order: Tensor


def best_paths(log_probs: Tensor, choice: Tensor | None, count: int) -> Paths:
    """Keep good paths of each depth, at most `count`; the best `count` of all are among them.

    Path i of the depth above and rank r below it, both counted from 0 and best first, are one of few pairs to
    look at. Where the depths are independent, (i + 1) * (r + 1) - 1 other pairs are no worse. Where they are
    not, a good path may have bad children, but its own children still come after r better ones among them,
    after the path itself, and after the i paths that are no worse than it: i + r others at least.

    Args:
        log_probs: [B, D, K] float32, best first, or [B, D, C, K] with `choice`; K at most `count`.
        choice: [B, D, C, K] int64, the candidate that an entry is, or `None`.
    """
    batch, depth, ranks = len(log_probs), log_probs.shape[1], log_probs.shape[-1]
    reach = [count // (index + 1) if choice is None else count - index for index in range(count)]
    widths = [min(ranks, most) for most in reach]
    ends = list(accumulate(widths))
    pairs = [(index, rank) for index, width in enumerate(widths) for rank in range(width)]
    parents, all_ranks = torch.tensor(pairs, device=log_probs.device).T.contiguous()

    score = log_probs.new_zeros(batch, 1)
    order = torch.zeros_like(score, dtype=torch.int64)
    last = order  # the candidate that each path ends with; of use with a choice only
    begin = 0
    levels: list[Paths] = []
    for level in range(depth):
        above = score.shape[1]
        parent, rank = parents[: ends[above - 1]], all_ranks[: ends[above - 1]]
        if choice is None:
            own = log_probs[:, level, rank]
        else:
            entry = last[:, parent] * ranks + rank
            own = log_probs[:, level].flatten(1).gather(1, entry)
        score = score[:, parent] + own
        score, best = (x[:, :count] for x in score.sort(dim=1, descending=True, stable=True))
        parent, rank = parent[best], rank[best]
        if choice is None:
            entry = rank
        else:
            entry = entry.gather(1, best)
            last = choice[:, level].flatten(1).gather(1, entry)
        place = order.gather(1, parent) * ranks + rank
        order = (place[:, :, None] > place[:, None, :]).sum(-1)
        levels.append(Paths(torch.full_like(place[0], level + 1), parent + begin, entry, score, order))
        begin += above if level else 0
    depths, *rest = zip(*levels, strict=True)
    return Paths(torch.cat(depths), *(torch.cat(tensors, 1) for tensors in rest))
