"""Weights that bfloat16 holds exactly, though they are float32 here: half the memory to read.

Most checkpoints are published in bfloat16, so that a model in float32 carries 16 bits of zeros a weight.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.fastpath.table import Shape, shape_of
from dflash_kernels.few_row_linear.layouts import available

MOST_BYTES = 512 * 2**20
"""Copies of a model may take so much memory; one that needs more goes without."""

GLANCE = 4096
"""Weights of a matrix that are looked at first: they tell nearly always."""


def narrow_shapes(weights: Sequence[Tensor]) -> frozenset[Shape]:
    """Shapes [out, in] all of whose float32 weights bfloat16 holds exactly."""
    nbytes = 2 * sum(weight.numel() for weight in weights)
    if nbytes > MOST_BYTES or "compiled" not in available():
        return frozenset()
    fits: dict[Shape, bool] = {}
    for weight in weights:
        shape = shape_of(weight)
        fits[shape] = fits.get(shape, True) and exact(weight)
    return frozenset(shape for shape, fit in fits.items() if fit)


def exact(weight: Tensor) -> bool:
    """Whether nothing is lost in bfloat16."""
    flat = weight.detach().view(-1)
    return all(torch.equal(part.bfloat16().float(), part) for part in (flat[:GLANCE], flat))
