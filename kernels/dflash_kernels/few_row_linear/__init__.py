"""A linear layer for few rows, in whichever layout is fastest on this machine."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.few_row_linear import layouts, reference
from dflash_kernels.few_row_linear.layouts import Layout

__all__ = ["few_row_linear"]

_IMPLEMENTATIONS = {"reference": reference.few_row_linear, "layouts": layouts.multiply}


def few_row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, *, impl: Impl = "auto"
) -> Tensor:
    """`x @ weight.T + bias`, equal to `torch.nn.functional.linear` within float32 rounding.

    Args:
        x: [..., in] float32 on the CPU; its rows are the product of the leading dimensions.
        weight: [out, in] float32 on the CPU, contiguous; for the compiled layout also bfloat16.
        bias: [out] or `None`.
        layout: how to compute it.
        impl: "auto" computes it in the layout asked for.

    Returns:
        [..., out] float32.
    """
    if impl == "auto":
        return layouts.multiply(x, weight, bias, layout)
    return choose("few_row_linear", impl, x, _IMPLEMENTATIONS)(x, weight, bias, layout)
