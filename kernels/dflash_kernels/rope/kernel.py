"""`rope` in Triton: all heads of one position a program."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rope(x, cos, sin, out, heads, half, of_row, of_head, HEADS: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (at < half)
    angle = row * half + at
    c = tl.load(cos + angle, mask=at < half, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=at < half, other=0.0).to(tl.float32)
    place = x + row * of_row + head * of_head + at
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    into = out + (row * heads + head) * 2 * half + at
    tl.store(into, (first * c - second * s).to(out.dtype.element_ty), mask=inside)
    tl.store(into + half, (second * c + first * s).to(out.dtype.element_ty), mask=inside)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `reference.rope`."""
    if not x.numel():
        return torch.empty_like(x)
    heads, size = x.shape[-2:]
    rows = x.reshape(-1, heads, size)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rope[(len(rows),)](
        rows,
        cos.reshape(-1, size // 2).contiguous(),
        sin.reshape(-1, size // 2).contiguous(),
        out,
        heads,
        size // 2,
        rows.stride(0),
        rows.stride(1),
        HEADS=triton.next_power_of_2(heads),
        HALF=triton.next_power_of_2(size // 2),
    )
    return out
