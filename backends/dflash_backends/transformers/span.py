"""Where one forward writes into the cache."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """New slots of consecutive rows.

    Attributes:
        first: the first row; the forward's row b is row `first + b` of the cache.
        starts: per row the slot that its first new token is written to.
        width: new tokens a row, padding included.
        device: where index tensors live.
    """

    first: int
    starts: tuple[int, ...]
    width: int
    device: torch.device

    @cached_property
    def total(self) -> int:
        """Slots that are visible, T: up to the end of the longest row."""
        return max(self.starts) + self.width

    @cached_property
    def even(self) -> int | None:
        """The start of all rows where it is one and the same."""
        return self.starts[0] if min(self.starts) == max(self.starts) else None

    @cached_property
    def last(self) -> int:
        """The last row."""
        return self.first + len(self.starts) - 1

    @property
    def rows(self) -> slice:
        return slice(self.first, self.last + 1)

    @cached_property
    def starts_tensor(self) -> Tensor:
        """[B] int64."""
        return torch.tensor(self.starts, device=self.device)

    @cached_property
    def row_index(self) -> Tensor:
        """[B, 1] int64, rows of the cache."""
        return torch.arange(self.first, self.first + len(self.starts), device=self.device)[:, None]

    @cached_property
    def slots(self) -> Tensor:
        """[B, N] int64, the slot of each new token."""
        return self.starts_tensor[:, None] + torch.arange(self.width, device=self.device)

    def slots_before_block(self) -> Tensor:
        """[B, T] bool."""
        return torch.arange(self.total, device=self.device) < self.starts_tensor[:, None]
