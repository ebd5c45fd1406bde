"""Reference of `draw`."""

import torch
from torch import Tensor

from dflash_kernels.chunks import gather_chunks, reduce_chunks

CHUNK = 256


def draw(weights: Tensor, noise: Tensor) -> Tensor:
    """First the chunk that the noise falls into, then the token in it, by what is left of the noise.

    A chunk's own sum has the precision of the weights; everything after that is float64.
    """
    size = min(CHUNK, weights.shape[-1])
    sums = reduce_chunks(weights, size, lambda part: part.sum(-1)).double()
    chunk, left = _find(sums, noise[..., None])
    values, ids = gather_chunks(weights, chunk, size, 0.0)
    place, _ = _find(values.double(), left)
    return ids.gather(-1, place).squeeze(-1)


def _find(weights: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The first entry at which the running sum exceeds the noise's part of the total.

    Entries of weight 0 are left out; where rounding puts the target at or above the total, it is the last
    entry that is not 0.

    Args:
        weights: [..., n] float64.
        noise: [..., 1] float64 in [0, 1).

    Returns:
        index: [..., 1] int64.
        left: [..., 1] float64 in [0, 1], how far into that entry the target lies.
    """
    sums = weights.cumsum(-1)
    target = noise * sums[..., -1:]
    places = torch.arange(weights.shape[-1], device=weights.device)
    positive = weights > 0
    last = torch.where(positive, places, 0).amax(-1, keepdim=True)
    index = torch.where(positive & (sums > target), places, last).amin(-1, keepdim=True)
    here = weights.gather(-1, index)
    left = (target - sums.gather(-1, index) + here) / here
    return index, left.clamp(0, 1)
