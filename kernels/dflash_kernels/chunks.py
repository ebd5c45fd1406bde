"""Rows of a vocabulary in chunks: a cheap pass over all of a row says which chunk is worth a closer look.

On a CPU a plain reduction streams at memory speed, while one that tracks indices (argmax, top-k, a
cumulative sum) is 10 to 20 times slower; with two steps the slow kind only sees one chunk, or a few.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def reduce_chunks(x: Tensor, size: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduce each chunk of `size` entries of the last axis to one; the last chunk may be shorter.

    Args:
        x: [..., V].
        reduce: [..., n] -> [...].

    Returns:
        [..., ceil(V / size)].
    """
    width = x.shape[-1]
    whole = width - width % size
    if whole == width:
        return reduce(x.unflatten(-1, (-1, size)))
    rest = reduce(x[..., whole:])[..., None]
    if whole == 0:
        return rest
    return torch.cat([reduce(x[..., :whole].unflatten(-1, (-1, size))), rest], -1)


def gather_chunks(x: Tensor, chunks: Tensor, size: int, fill: float) -> tuple[Tensor, Tensor]:
    """The entries of some chunks, side by side.

    Args:
        x: [..., V] floats.
        chunks: [..., M] int64 chunk numbers.
        fill: value of entries beyond the end of the row.

    Returns:
        values: [..., M * size].
        ids: [..., M * size] int64, their places in the row; clipped to V - 1 beyond its end.
    """
    ids = (chunks[..., None] * size + torch.arange(size, device=x.device)).flatten(-2)
    last = x.shape[-1] - 1
    values = x.gather(-1, ids.clamp(max=last)).masked_fill(ids > last, fill)
    return values, ids.clamp(max=last)
