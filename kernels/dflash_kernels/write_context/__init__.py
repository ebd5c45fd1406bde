"""Writing new context keys and values into the pool."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose, with_triton
from dflash_kernels.write_context import reference

__all__ = ["write_context"]

_IMPLEMENTATIONS = with_triton("write_context", {"reference": reference.write_context})


def write_context(
    k_pool: Tensor, v_pool: Tensor, slots: Tensor, k: Tensor, v: Tensor, *, impl: Impl = "auto"
) -> None:
    """Scatter keys and values of all layers to their slots; see `reference.write_context`."""
    choose("write_context", impl, k_pool, _IMPLEMENTATIONS)(k_pool, v_pool, slots, k, v)
