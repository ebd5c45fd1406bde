"""`dynamic_conv` in Triton: one slot a program."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _conv(
    x, dynamic, base, out, slots, width, group, x_row, x_slot, of_row, of_slot, of_offset,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros([BLOCK], tl.float32)
    for offset in tl.static_range(SIZE):
        there = inside & (at * 0 + slot >= offset)  # a vector: the interpreter masks with nothing else
        before = tl.load(x + row * x_row + (slot - offset) * x_slot + at, mask=there, other=0.0)
        fixed = tl.load(base + offset * width + at, mask=there, other=0.0).to(tl.float32)
        place = dynamic + row * of_row + slot * of_slot + offset * of_offset + at // group
        moving = tl.load(place, mask=there, other=0.0).to(tl.float32)
        total += (fixed + moving) * before.to(tl.float32)
    tl.store(out + (row * slots + slot) * width + at, total.to(out.dtype.element_ty), mask=inside)


def dynamic_conv(x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
    """See `reference.dynamic_conv`."""
    batch, slots, width = x.shape
    size, groups = dynamic.shape[2:]
    x, dynamic = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, dynamic))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        _conv[(batch, slots)](
            x,
            dynamic,
            base.contiguous(),
            out,
            slots,
            width,
            width // groups,
            *x.stride()[:2],
            *dynamic.stride()[:3],
            SIZE=size,
            BLOCK=triton.next_power_of_2(width),
        )
    return out
