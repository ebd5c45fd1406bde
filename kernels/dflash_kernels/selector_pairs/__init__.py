"""DFlash2's scores of every candidate of a slot after every candidate of the slot before."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.selector_pairs import reference

__all__ = ["selector_pairs"]

_IMPLEMENTATIONS = {"reference": reference.selector_pairs}


def selector_pairs(
    unary: Tensor,
    ids: Tensor,
    hidden: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    anchors: Tensor,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Score all transitions of a block at once; see `reference.selector_pairs`."""
    return choose("selector_pairs", impl, unary, _IMPLEMENTATIONS)(
        unary, ids, hidden, predecessors, successors, anchors
    )
