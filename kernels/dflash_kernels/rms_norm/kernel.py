"""`rms_norm` in Triton: one row a program."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, weight, out, heads, width, of_row, of_head, weights, eps, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row, head = program // heads, program % heads
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row.to(tl.int64) * of_row + head * of_head + at, mask=inside, other=0.0)
    values = values.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values) / width + eps)
    scale = tl.load(weight + (row % weights) * width + at, mask=inside, other=0.0).to(tl.float32)
    result = values * inverse * scale
    tl.store(out + program.to(tl.int64) * width + at, result.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.rms_norm`; `weight` is [d], or [L, 1, d] for [..., L, H, d]."""
    if not x.numel():
        return torch.empty_like(x)
    width = x.shape[-1]
    by_head = weight.dim() > 1
    weight = weight.expand(*weight.shape[:-1], width)
    rows = x.reshape(-1, x.shape[-2], width) if by_head or x.dim() > 2 else x.reshape(-1, 1, width)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rms_norm[(rows.shape[0] * rows.shape[1],)](
        rows,
        weight.contiguous(),
        out,
        rows.shape[1],
        width,
        rows.stride(0),
        rows.stride(1),
        weight.shape[0] if by_head else 1,
        eps,
        BLOCK=triton.next_power_of_2(width),
    )
    return out
