"""`rope` in C: one call instead of a chain of small operations."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_kernels import native


def fits(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the routine is there, made for these arguments, and nobody asks for gradients."""
    return (
        native.plain_float(x)
        and native.plain_float(cos)
        and native.plain_float(sin)
        and x.dim() >= 2
        and cos.shape == sin.shape == (*x.shape[:-2], x.shape[-1] // 2)
        and x.shape[-1] % 2 == 0
        and x.numel() <= native.ONE_THREAD
        and routine() is not None
    )


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `reference.rope`; float32 on the CPU."""
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    y = torch.empty_like(x)
    heads, size = x.shape[-2:]
    rows = x.numel() // max(heads * size, 1)
    routine()(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr(), rows, heads, size // 2)
    return y


@cache
def routine() -> Any:
    """The compiled routine, or `None`."""
    return native.function(Path(__file__).with_name("rope.c"), 4, *[ctypes.c_long] * 3)
