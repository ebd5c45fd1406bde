"""Reference of `topk`."""

import torch
from torch import Tensor

LARGEST_GROUP = 32
SMALLEST_GROUP = 4


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries lie in the k groups with the largest maxima.

    Group j holds the entries j, j + groups, j + 2 groups and so on: reducing over the strided axis is the
    fast way on a CPU. What is left over after whole groups is looked at anyway.
    """
    size = min(LARGEST_GROUP, x.shape[-1] // (8 * k) + SMALLEST_GROUP)
    groups = x.shape[-1] // size
    if k * 2 > groups:
        values, ids = x.topk(k)
        return values, ids
    whole = groups * size
    grouped = x[..., :whole].unflatten(-1, (size, groups))
    chosen = grouped.amax(-2).topk(k, sorted=False).indices[..., None, :]  # [..., 1, k]
    steps = torch.arange(0, whole, groups, device=x.device)[:, None]
    places = (steps + chosen).flatten(-2)
    candidates = grouped.gather(-1, chosen.expand(*grouped.shape[:-1], k)).flatten(-2)
    if whole < x.shape[-1]:
        rest = torch.arange(whole, x.shape[-1], device=x.device)
        places = torch.cat([places, rest.expand(*places.shape[:-1], -1)], -1)
        candidates = torch.cat([candidates, x[..., whole:]], -1)
    values, best = candidates.topk(k)
    return values, places.gather(-1, best)
