"""The filters, applied to the best tokens of each row, in an order that ties cannot change."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_kernels.topk.reference import topk

FIRST = 256
GROWTH = 4


class Limits(NamedTuple):
    """Filters of R rows, [R, 1] each; 0, 1 and 0 are off."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def of(self, rows: Tensor) -> "Limits":
        """The filters of some rows."""
        return Limits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def widths(vocab: int, max_top_k: int) -> Iterator[int]:
    """How many tokens to look at: few at first, then more and more, at last all of them."""
    width = max_top_k + max_top_k // 4 + 8 if max_top_k else FIRST
    while width < vocab // 2:
        yield width
        width *= GROWTH
    yield vocab


def best(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best tokens, best first, and of equal ones the larger id first.

    Args:
        scores: [R, V] floats.

    Returns:
        values: [R, width].
        ids: [R, width] int64. Which of the tokens that tie with the last one are there is not specified.
    """
    if width == scores.shape[-1]:
        values, places = scores.flip(-1).sort(dim=-1, descending=True, stable=True)
        return values, width - 1 - places
    values, ids = topk(scores, width)
    ids, order = ids.sort(dim=-1, descending=True)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def keep(values: Tensor, weights: Tensor, limits: Limits, complete: bool) -> tuple[Tensor, Tensor]:
    """What the filters leave.

    Args:
        values: [R, W], from `best`.
        weights: [R, W] float32, the probabilities of these tokens before any filter.
        complete: whether W is the whole vocabulary.

    Returns:
        weights: [R, W] float32, summing to 1; 0 where the token is dropped.
        enough: [R] bool: whether top-k, or without it the other filters, drop all tokens beyond these W, ties
            with them included. The weights are right only then.
    """
    k = limits.top_k
    limit = values.gather(-1, (k - 1).clamp(0, values.shape[-1] - 1))
    kept = (k == 0) | (values >= limit)
    mass = torch.where(kept, weights, 0).double()
    total = torch.where(k == 0, 1.0, mass.sum(-1, keepdim=True))
    kept &= (mass.cumsum(-1) - mass < limits.top_p * total) | (limits.top_p >= 1)
    kept &= weights >= limits.min_p * weights[:, :1]
    edge = values.gather(-1, (kept.sum(-1, keepdim=True) - 1).clamp(min=0))
    enough = (values[:, -1:] < torch.where(k == 0, edge, limit)) | complete
    left = torch.where(kept, weights, 0).double()  # so that W does not show in the last bit of the answer
    return (left / left.sum(-1, keepdim=True)).float(), enough[:, 0]
