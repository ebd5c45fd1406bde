"""Draw a token from each distribution."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.draw import reference

__all__ = ["draw"]

_IMPLS = {"reference": reference.draw}


def draw(weights: Tensor, noise: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Inverse of the cumulative distribution, with running sums in float64.

    Args:
        weights: [..., V] non-negative floats, at least one of a row positive; they need not sum to 1.
        noise: [...] float64 in [0, 1).

    Returns:
        [...] int64; never a token of weight 0.
    """
    return choose("draw", impl, weights, _IMPLS)(weights, noise)
