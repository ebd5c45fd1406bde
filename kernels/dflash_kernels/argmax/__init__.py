"""Index of the largest entry of each row."""

from torch import Tensor

from dflash_kernels.argmax import device, reference
from dflash_kernels.dispatch import Impl, choose

__all__ = ["argmax"]

_IMPLS = {"reference": reference.argmax, "device": device.argmax}


def argmax(x: Tensor, *, impl: Impl = "auto") -> Tensor:
    """`x.argmax(-1)`, the first of equals, about ten times as fast on a CPU.

    Args:
        x: [..., V] floats.

    Returns:
        [...] int64.
    """
    return choose("argmax", impl, x, _IMPLS)(x)
