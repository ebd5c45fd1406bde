"""DFlash2's left-to-right choice among the candidates of every slot."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.selector_walk import reference

__all__ = ["selector_walk"]

_IMPLEMENTATIONS = {"reference": reference.selector_walk}


def selector_walk(
    unary: Tensor,
    ids: Tensor,
    hidden: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    anchors: Tensor,
    temperature: Tensor | None = None,
    uniforms: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Pick one candidate a slot, each given the one before; see `reference.selector_walk`."""
    return choose("selector_walk", impl, unary, _IMPLEMENTATIONS)(
        unary, ids, hidden, predecessors, successors, anchors, temperature, uniforms
    )
