"""Ways to lay out `x [n, in] @ W [out, in].T` on a CPU, which differ by far when n is small.

Weights stream from memory at the same speed for one row as for several, so a product of a few rows need not
cost more than that of one. Which layout comes near to that is a property of the machine and of its library.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_kernels.few_row_linear import compiled

Layout = Literal["linear", "column", "sliced", "compiled"]
"""One way to compute the product: "linear" is torch's own; "column" multiplies from the left,
`(W @ x.T).T`; "sliced" is a batch of products with `SLICE` output features each; "compiled" is our own
routine in C, where there is a compiler."""

SLICE = 64
"""Output features of a slice: a slice of the weight stays in a core's cache while all rows pass over it."""


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    """See `dflash_kernels.few_row_linear.few_row_linear`."""
    product = LAYOUTS[layout](x.reshape(-1, x.shape[-1]), weight, bias)
    return product.view(*x.shape[:-1], weight.shape[0])


def _column(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.shape[0]
    if rows == 1:
        x = x.repeat(2, 1)  # a lone column is multiplied by a slower routine than two are
    product = (weight @ x.t().contiguous()).t()[:rows].contiguous()
    return product if bias is None else product.add_(bias)


def _sliced(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    count, rest = divmod(weight.shape[0], SLICE)
    if rest or count < 2:
        return F.linear(x, weight, bias)
    slices = weight.view(count, SLICE, weight.shape[1]).transpose(1, 2)
    product = torch.bmm(x.expand(count, -1, -1), slices)  # [count, rows, SLICE]
    product = product.transpose(0, 1).reshape(x.shape[0], weight.shape[0])
    return product if bias is None else product.add_(bias)


LAYOUTS: dict[Layout, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "linear": F.linear,
    "column": _column,
    "sliced": _sliced,
    "compiled": compiled.multiply,
}


def available() -> tuple[Layout, ...]:
    """The layouts that this machine has."""
    return tuple(name for name in LAYOUTS if name != "compiled" or compiled.routine() is not None)
