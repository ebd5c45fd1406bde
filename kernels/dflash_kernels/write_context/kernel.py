"""`write_context` in Triton: one position of one layer a program, keys and values together."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(
    k_pool, v_pool, slots, k, v, width, pool_of_layer, k_of_layer, k_of_row, v_of_layer, v_of_row,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    into = layer * pool_of_layer + tl.load(slots + row) * width + at
    keys = tl.load(k + layer * k_of_layer + row * k_of_row + at, mask=inside)
    tl.store(k_pool + into, keys.to(k_pool.dtype.element_ty), mask=inside)
    values = tl.load(v + layer * v_of_layer + row * v_of_row + at, mask=inside)
    tl.store(v_pool + into, values.to(v_pool.dtype.element_ty), mask=inside)


def write_context(k_pool: Tensor, v_pool: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """See `reference.write_context`; the pools are contiguous."""
    layers, count, heads, size = k.shape
    if not count:
        return
    k, v = (each if each.stride()[2:] == (size, 1) else each.contiguous() for each in (k, v))
    _write[(count, layers)](
        k_pool,
        v_pool,
        slots.contiguous(),
        k,
        v,
        heads * size,
        k_pool.stride(0),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        BLOCK=triton.next_power_of_2(heads * size),
    )
