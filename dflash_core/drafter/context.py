"""How the draft network finds its context: pool tensors and a view that says which slots are whose."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ContextView:
    """The context of B rows in one zone of a pool; made by whoever numbers the slots, our pool or an engine.

    Attributes:
        slots: [B, T] int64, oldest position first; anything past a row's length.
        starts: [B] int64, the position of `slots[b, 0]`; the others follow without gaps.
        lengths: [B] int64, how many of the T a row has; `None` when all rows have T.
    """

    slots: Tensor
    starts: Tensor
    lengths: Tensor | None


@dataclass(frozen=True)
class ContextZone:
    """Keys and values of some draft layers, and where they lie.

    Attributes:
        layers: the draft layers, in the order of the first dimension of `k` and `v`.
        k, v: [L, num_slots, Hkv, d], any float dtype.
    """

    layers: tuple[int, ...]
    k: Tensor
    v: Tensor
    view: ContextView
