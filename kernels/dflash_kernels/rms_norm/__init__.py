"""Root-mean-square normalisation."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose, with_triton
from dflash_kernels.rms_norm import compiled, reference

__all__ = ["rms_norm"]

_IMPLEMENTATIONS = with_triton("rms_norm", {"reference": reference.rms_norm, "compiled": compiled.rms_norm})


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, impl: Impl = "auto") -> Tensor:
    """`x / rms(x) * weight` over the last dimension; see `reference.rms_norm`."""
    if impl == "auto" and compiled.fits(x, weight):
        return compiled.rms_norm(x, weight, eps)
    out: Tensor = choose("rms_norm", impl, x, _IMPLEMENTATIONS)(x, weight, eps)
    return out
