"""The largest entries of each row."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.topk import reference

__all__ = ["topk"]

_IMPLS = {"reference": reference.topk}


def topk(x: Tensor, k: int, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """`x.topk(k)`, several times as fast on a CPU for small k and long rows.

    Args:
        x: [..., V] floats.
        k: 1 to V.

    Returns:
        values: [..., k], largest first.
        ids: [..., k] int64; which of equal entries are taken, and their order, is not specified.
    """
    return choose("topk", impl, x, _IMPLS)(x, k)
