"""Bookkeeping of pool slots on the host: which are free, and which slot holds which position."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_core.upload import upload

Ints = NDArray[np.int64]


class SlotAllocator:
    """Hands out slot numbers from 0 to `total - 1`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        # a stack: free slots are the first `free` entries, lowest number on top
        self._stack: Ints = np.arange(total - 1, -1, -1, dtype=np.int64)

    def take(self, count: int) -> Ints:
        """`count` slots; the caller has seen to it that so many are free."""
        self.free -= count
        return self._stack[self.free : self.free + count][::-1]

    def give_back(self, slots: Ints) -> None:
        self._stack[self.free : self.free + len(slots)] = slots
        self.free += len(slots)

    def grow(self, total: int) -> None:
        """Make slots up to `total - 1` exist; the new ones are free."""
        stack = np.empty(total, dtype=np.int64)
        new = total - self.total
        stack[:new] = np.arange(total - 1, self.total - 1, -1)
        stack[new : new + self.free] = self._stack[: self.free]
        self._stack = stack
        self.free += new
        self.total = total


class SlotTable:
    """Slot numbers by row and column, on the host and, in step with it, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host: Ints = np.zeros((4, 64), dtype=np.int64)
        self._mirror()

    def fit(self, rows: int, columns: int) -> None:
        """Make room, doubling whichever side is too short."""
        old = self._host
        shape = [_doubled(have, need) for have, need in zip(old.shape, (rows, columns), strict=True)]
        if shape != list(old.shape):
            self._host = np.zeros(shape, dtype=np.int64)
            self._host[: old.shape[0], : old.shape[1]] = old
            self._mirror()

    def read(self, rows: Ints, columns: Ints) -> Ints:
        """Entries [M] at rows [M] and columns [M]."""
        return self._host[rows, columns]

    def row(self, row: int, start: int, stop: int) -> Ints:
        """The entries of one row from column `start` to `stop - 1`."""
        return self._host[row, start:stop]

    def write(self, rows: Ints, columns: Ints, slots: Ints) -> None:
        """Set entries [M] at rows [M] and columns [M]."""
        self._host[rows, columns] = slots
        if self._device.type != "cpu":
            where = upload(np.stack([rows, columns, slots]), self._device)
            self.device[where[0], where[1]] = where[2]

    def keep(self, rows: Ints) -> None:
        """New row i is old row `rows[i]`."""
        kept = np.zeros_like(self._host)
        kept[: len(rows)] = self._host[rows]
        self._host = kept
        self._mirror()

    def _mirror(self) -> None:
        """On a CPU the device's table is the same memory."""
        self.device: Tensor = upload(self._host, self._device)


def _doubled(have: int, need: int) -> int:
    while have < need:
        have *= 2
    return have
