"""Reference of `argmax`."""

from torch import Tensor

from dflash_kernels.chunks import gather_chunks, reduce_chunks

CHUNK = 256


def argmax(x: Tensor) -> Tensor:
    """First the chunk with the largest maximum, then the place in it."""
    size = min(CHUNK, x.shape[-1])
    best = reduce_chunks(x, size, lambda part: part.amax(-1)).argmax(-1, keepdim=True)
    values, ids = gather_chunks(x, best, size, float("-inf"))
    return ids.gather(-1, values.argmax(-1, keepdim=True)).squeeze(-1)
