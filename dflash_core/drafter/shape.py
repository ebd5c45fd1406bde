"""A cycle's plan, as the block drafter needs it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_core.drafter.slots import Ints
from dflash_core.schedule.base import CyclePlan
from dflash_core.upload import upload


@dataclass(frozen=True)
class DraftShape:
    """Which rows are drafted, and how far. All of it is known on the host.

    Attributes:
        rows: [R], the rows of the batch that are drafted.
        block_sizes: [R] slots of their blocks.
        verify_lengths: [B] deepest slot verified + 1; 1 for rows that are not drafted.
        trees: [B] whether a row's drafts are a tree.
        budgets: [B] nodes besides the anchor, for a chain its length.
    """

    rows: Ints
    block_sizes: Ints
    verify_lengths: Ints
    trees: NDArray[np.bool_]
    budgets: Ints

    @classmethod
    def of(cls, plan: CyclePlan) -> "DraftShape":
        blocks = np.asarray(plan.block_sizes, dtype=np.int64)
        lengths = np.minimum(blocks, np.asarray(plan.verify_lengths, dtype=np.int64))
        rows = np.flatnonzero(lengths > 1)
        wanted = np.asarray([budget or 0 for budget in plan.tree_budgets], dtype=np.int64)
        trees = (wanted > 0) & (lengths > 1)
        return cls(rows, blocks[rows], lengths, trees, np.where(trees, wanted, lengths - 1))

    @property
    def everyone(self) -> bool:
        """Whether all rows of the batch are drafted."""
        return len(self.rows) == len(self.verify_lengths)

    @property
    def width(self) -> int:
        """Slots of the longest block."""
        return int(self.block_sizes.max())

    @property
    def even(self) -> bool:
        """Whether all blocks are equally long."""
        return bool((self.block_sizes == self.width).all())

    @property
    def depth(self) -> int:
        """Drafted slots that any row verifies."""
        return int(self.verify_lengths.max()) - 1

    @staticmethod
    def tensor(values: NDArray[np.generic], device: torch.device) -> Tensor:
        """[n] on the device."""
        return upload(values, device)
