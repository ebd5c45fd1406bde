"""Reference of `gather_slots`: one indexed copy out, one indexed copy in."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gather_slots(caches: Sequence[Tensor], starts: Tensor, source: Tensor) -> None:
    """See `dflash_kernels.gather_slots.gather_slots`."""
    to = starts[:, None] + torch.arange(source.shape[1], device=source.device)  # [B, A]
    taken = torch.where(source < 0, to, starts[:, None] + source)  # a slot that stays is its own source
    places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for cache in caches:
        heads, capacity, size = cache.shape[1:]
        if (heads, capacity) not in places:
            first = torch.arange(len(source) * heads, device=source.device).view(-1, heads, 1) * capacity
            places[heads, capacity] = (first + to[:, None]).flatten(), (first + taken[:, None]).flatten()
        into, out = places[heads, capacity]
        flat = cache.view(-1, size)
        flat.index_copy_(0, into, flat.index_select(0, out))  # a copy, so overlap does no harm
