"""Reference of `gather_slots`: one indexed copy out, one indexed copy in."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gather_slots(caches: Sequence[Tensor], starts: Tensor, source: Tensor) -> None:
    """See `dflash_kernels.gather_slots.gather_slots`."""
    rows = torch.arange(source.shape[0], device=source.device)[:, None]  # [B, 1]
    to = starts[:, None] + torch.arange(source.shape[1], device=source.device)  # [B, A]
    taken = torch.where(source < 0, to, starts[:, None] + source)  # a slot that stays is its own source
    for cache in caches:
        cache[rows, :, to] = cache[rows, :, taken]  # the right side is a copy, so overlap does no harm
