"""The product in C."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_kernels import native

SOURCE = Path(__file__).with_name("few_rows.c")


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, in] @ weight [out, in].T + bias [out]: float32, on the CPU, weight and bias contiguous.

    The weight may be bfloat16; the product is float32 all the same, and reads half the memory.
    """
    function = routine()
    if function is None:
        raise RuntimeError("There is no compiled product on this machine, as `available` says.")
    x = x.contiguous()
    rows, inner = x.shape
    outer = weight.shape[0]
    product = torch.empty(rows, outer, dtype=torch.float32, device="cpu")
    function(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        product.data_ptr(),
        rows,
        inner,
        outer,
        torch.get_num_threads(),
        int(weight.dtype == torch.bfloat16),
    )
    return product


@cache
def routine() -> Any:
    """The compiled routine, or `None`."""
    return native.function(SOURCE, 4, *[ctypes.c_long] * 3, ctypes.c_int, ctypes.c_int)
