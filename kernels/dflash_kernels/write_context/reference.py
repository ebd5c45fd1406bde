"""Specification of `write_context`."""

from torch import Tensor


def write_context(k_pool: Tensor, v_pool: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write M positions of all L layers, in place and in the pool's dtype.

    Args:
        k_pool, v_pool: [L, num_slots, Hkv, d].
        slots: [M] int64, no slot twice.
        k, v: [L, M, Hkv, d].
    """
    k_pool.index_copy_(1, slots, k.to(k_pool.dtype))
    v_pool.index_copy_(1, slots, v.to(v_pool.dtype))
