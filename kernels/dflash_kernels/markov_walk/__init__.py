"""DSpark's left-to-right choice in a block, each token after the one before."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.markov_walk import reference

__all__ = ["markov_walk"]

_IMPLEMENTATIONS = {"reference": reference.markov_walk}


def markov_walk(
    unary: Tensor,
    ids: Tensor,
    before: Tensor,
    after: Tensor,
    anchors: Tensor,
    temperature: Tensor | None = None,
    uniforms: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Pick one token a slot, each given the one before; see `reference.markov_walk`."""
    return choose("markov_walk", impl, unary, _IMPLEMENTATIONS)(
        unary, ids, before, after, anchors, temperature, uniforms
    )
