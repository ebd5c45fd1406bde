"""DFlash2's dynamic convolution for training, whose gradient is written out."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class DynamicConv(Function):
    """`y[s] = sum_o (base[o] + dynamic[s, o]) * x[s - o]`, as `dflash_kernels.dynamic_conv`.

    What the channels of a group share is spread over them, and summed over them, by a product with a matrix
    of ones: matrices are what a processor does best, and the sums are exact in 16 bit as well.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
        """
        Args:
            x: [B, S, D] floats. dynamic: [B, S, K, G]. base: [K, D]. All of one dtype, which is computed in.
        """
        size, groups = dynamic.shape[2:]
        spread = spreading(groups, x.shape[-1], x)
        kernels = [
            torch.addmm(base[o], dynamic[:, :, o].flatten(0, 1), spread).view(x.shape) for o in range(size)
        ]
        out = x * kernels[0]
        for o in range(1, min(size, x.shape[1])):
            out[:, o:].addcmul_(x[:, :-o], kernels[o][:, o:])
        ctx.save_for_backward(x, *kernels)
        ctx.groups = groups
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, *kernels = ctx.saved_tensors
        (gradient,) = gradients
        gathered = spreading(ctx.groups, x.shape[-1], x).t()
        own = gradient * kernels[0]
        dynamic = gradient.new_zeros(*x.shape[:2], len(kernels), ctx.groups)
        base = gradient.new_zeros(len(kernels), x.shape[-1])
        for o in range(min(len(kernels), x.shape[1])):
            if o:
                own[:, :-o].addcmul_(gradient[:, o:], kernels[o][:, o:])
            product = (gradient[:, o:] * x[:, : x.shape[1] - o]).flatten(0, 1)
            dynamic[:, o:, o] = (product @ gathered).view(len(x), -1, ctx.groups)
            base[o] = product.sum(0)
        return own, dynamic, base


def spreading(groups: int, width: int, like: Tensor) -> Tensor:
    """[G, D] ones where a channel belongs to a group."""
    return torch.eye(groups, dtype=like.dtype, device=like.device).repeat_interleave(width // groups, 1)


def dynamic_conv(x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
    """See `DynamicConv`."""
    out: Tensor = DynamicConv.apply(x, dynamic, base)  # type: ignore[no-untyped-call]
    return out
