"""DFlash2's grouped dynamic convolution over the slots of a block."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.dynamic_conv import reference

__all__ = ["dynamic_conv"]

_IMPLEMENTATIONS = {"reference": reference.dynamic_conv}


def dynamic_conv(x: Tensor, dynamic: Tensor, base: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Causal depthwise convolution with a kernel of its own per slot; see `reference.dynamic_conv`."""
    return choose("dynamic_conv", impl, x, _IMPLEMENTATIONS)(x, dynamic, base)
