"""Reference of `draw`."""

import torch
from torch import Tensor

from dflash_kernels.chunks import gather_chunks, reduce_chunks

CHUNK = 256


def draw(weights: Tensor, noise: Tensor) -> Tensor:
    """First the chunk that the noise falls into, then the token in it."""
    size = min(CHUNK, weights.shape[-1])
    sums = reduce_chunks(weights, size, lambda part: part.sum(-1, dtype=torch.float64))
    target = noise[..., None] * sums.sum(-1, keepdim=True)
    chunk, passed = _find(sums, target)
    values, ids = gather_chunks(weights, chunk, size, 0.0)
    place, _ = _find(values.double(), target - passed)
    return ids.gather(-1, place).squeeze(-1)


def _find(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first entry at which the running sum exceeds the target, entries of weight 0 left out.

    Where rounding puts the target at or above the total, it is the last entry that is not 0.

    Args:
        weights: [..., n] float64.
        target: [..., 1] float64.

    Returns:
        index: [..., 1] int64.
        before: [..., 1] float64, the sum of the entries before it.
    """
    sums = weights.cumsum(-1)
    places = torch.arange(weights.shape[-1], device=weights.device)
    positive = weights > 0
    last = torch.where(positive, places, 0).amax(-1, keepdim=True)
    index = torch.where(positive & (sums > target), places, last).amin(-1, keepdim=True)
    return index, (sums - weights).gather(-1, index)
