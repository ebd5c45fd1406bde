"""Noise as a pure function of where it is used."""

from typing import Final

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.uniform import reference

__all__ = ["ACCEPT", "DRAFT", "RESIDUAL", "STREAMS", "TARGET", "uniform"]

TARGET: Final = 0
"""Stream of the target's own draw of a token."""
DRAFT: Final = 1
"""Stream of a drafter's draw of a token."""
ACCEPT: Final = 2
"""Stream of the decision whether a drafted token is accepted."""
RESIDUAL: Final = 3
"""Stream of the draw after all drafts of a position were refused."""
STREAMS: Final = 4
"""Distance between a stream and its copy for the next sibling: rank r uses stream + STREAMS * r."""

_IMPLS = {"reference": reference.uniform}


def uniform(seeds: Tensor, positions: Tensor, stream: int, *, impl: Impl = "auto") -> Tensor:
    """Uniform noise that depends on (seed, position, stream) alone; the same bits on every device.

    Args:
        seeds: [B] int64.
        positions: [B, ...] int64, the position of the token that the noise decides.
        stream: what the noise is for (`TARGET`, `DRAFT`, `ACCEPT`, `RESIDUAL`, or their copies for siblings).

    Returns:
        [B, ...] float64 in [0, 1), multiples of 2**-53.

    Source: a counter-based generator in the manner of Salmon et al. 2011 ("Parallel random numbers: as easy
        as 1, 2, 3"), with the mixer of SplitMix64 (Steele et al. 2014) as its bijection.
    """
    return choose("uniform", impl, positions, _IMPLS)(seeds, positions, stream)
