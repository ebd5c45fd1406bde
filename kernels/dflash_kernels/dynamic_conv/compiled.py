"""`dynamic_conv` in C: one call instead of a dozen small operations."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_kernels import native


def fits(x: Tensor, dynamic: Tensor, base: Tensor) -> bool:
    """Whether the routine is there, made for these arguments, and nobody asks for gradients."""
    return (
        all(native.plain_float(each) for each in (x, dynamic, base))
        and x.numel() <= native.ONE_THREAD
        and dynamic.shape[:2] == x.shape[:2]
        and base.shape == (dynamic.shape[2], x.shape[2])
        and x.shape[2] % dynamic.shape[3] == 0
        and routine() is not None
    )


def dynamic_conv(x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
    """See `reference.dynamic_conv`; float32 on the CPU."""
    x, base = x.contiguous(), base.contiguous()
    size, groups = dynamic.shape[2:]
    if dynamic.stride()[2:] != (groups, 1):  # of a packed pair of kernels it may be one, which needs no copy
        dynamic = dynamic.contiguous()
    y = torch.empty_like(x)
    batch, slots, width = x.shape
    routine()(
        *(each.data_ptr() for each in (x, dynamic, base, y)),
        *(batch, slots, width, size, width // groups, dynamic.stride(1), dynamic.stride(0)),
    )
    return y


@cache
def routine() -> Any:
    """The compiled routine, or `None`."""
    return native.function(Path(__file__).with_name("dynamic_conv.c"), 4, *[ctypes.c_long] * 7)
