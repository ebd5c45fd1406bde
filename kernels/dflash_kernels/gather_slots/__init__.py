"""KV compaction after a tree: the slots of the accepted nodes move to the front of the block."""

from collections.abc import Callable, Sequence

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.gather_slots import reference

IMPLEMENTATIONS: dict[str, Callable[[Sequence[Tensor], Tensor, Tensor], None]] = {
    "reference": reference.gather_slots
}


def gather_slots(caches: Sequence[Tensor], starts: Tensor, source: Tensor, *, impl: Impl = "auto") -> None:
    """Move slots within each row, in place: slot `starts[b] + j` becomes slot `starts[b] + source[b, j]`.

    All moves of a row read before any of them writes, so sources and destinations may overlap.

    Args:
        caches: contiguous tensors [R, Hkv, capacity, d] with R >= B, K and V of all layers; rows 0 to B - 1
            are touched.
        starts: [B] int64, the first slot of each row's block.
        source: [B, A] int64, slots counted from `starts`; an entry of -1 leaves its slot as it is. The
            slots `starts[b] + j` for all j < A must exist.
    """
    choose("gather_slots", impl, source, IMPLEMENTATIONS)(caches, starts, source)
