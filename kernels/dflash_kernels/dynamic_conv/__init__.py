"""DFlash2's grouped dynamic convolution over the slots of a block."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose, with_triton
from dflash_kernels.dynamic_conv import compiled, reference

__all__ = ["dynamic_conv"]

_IMPLEMENTATIONS = with_triton(
    "dynamic_conv", {"reference": reference.dynamic_conv, "compiled": compiled.dynamic_conv}
)


def dynamic_conv(x: Tensor, dynamic: Tensor, base: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Causal depthwise convolution with a kernel of its own per slot; see `reference.dynamic_conv`."""
    if impl == "auto" and compiled.fits(x, dynamic, base):
        return compiled.dynamic_conv(x, dynamic, base)
    out: Tensor = choose("dynamic_conv", impl, x, _IMPLEMENTATIONS)(x, dynamic, base)
    return out
