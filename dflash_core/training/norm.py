"""The root mean square norm for training, whose gradient is written out."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class RMSNorm(Function):
    """`x / rms(x) * weight` over the last dimension.

    On a CPU torch puts this together from operations that each have a gradient of their own, and that takes
    four times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """
        Args:
            x: [..., D] floats. weight: [D], of the same dtype.
            eps: added to the mean square.
        """
        size = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)  # in 16 bit it may overflow
        inverse = (size.square() / x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit: Tensor = x * inverse
        ctx.save_for_backward(unit, inverse, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        unit, inverse, weight = ctx.saved_tensors
        (gradient,) = gradients
        product = gradient * unit
        along = (product @ weight)[..., None] / -unit.shape[-1]
        own = torch.addcmul(gradient * weight, unit, along).mul_(inverse)
        return own, product.flatten(0, -2).sum(0), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `RMSNorm`."""
    out: Tensor = RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out
