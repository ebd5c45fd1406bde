"""Taps of committed positions that no draft has needed yet."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.drafter.slots import Ints
from dflash_core.upload import upload


@dataclass(frozen=True)
class Pending:
    """M queued positions.

    Attributes:
        taps: [M, P * D].
        rows, positions: [M].
    """

    taps: Tensor
    rows: Ints
    positions: Ints


class TapQueue:
    """Collects taps so that plain decoding costs no projection, and a draft one product for all it needs."""

    def __init__(self) -> None:
        self._entries: list[Pending] = []
        self.size = 0

    def push(self, taps: Tensor, rows: Ints, positions: Ints) -> None:
        self._entries.append(Pending(taps, rows, positions))
        self.size += len(rows)

    def keep_rows(self, rows: Ints, before: int) -> None:
        """New row i is old row `rows[i]` of `before`; what belongs to the others is dropped."""
        renumbered = np.full(before, -1, dtype=np.int64)
        renumbered[rows] = np.arange(len(rows))
        entries = [Pending(e.taps, renumbered[e.rows], e.positions) for e in self._entries]
        self._entries = [_where(entry, entry.rows >= 0) for entry in entries]
        self.size = sum(len(entry.rows) for entry in self._entries)

    def peek(self, oldest: Ints) -> Pending:
        """All that is queued, but for positions below a row's `oldest` [B]."""
        rows = np.concatenate([entry.rows for entry in self._entries])
        positions = np.concatenate([entry.positions for entry in self._entries])
        taps = [entry.taps for entry in self._entries]
        pending = Pending(taps[0] if len(taps) == 1 else torch.cat(taps), rows, positions)
        return _where(pending, positions >= oldest[rows])

    def clear(self) -> None:
        self._entries = []
        self.size = 0


def _where(entry: Pending, wanted: np.ndarray) -> Pending:
    """The wanted [M] bool ones of an entry's positions."""
    if wanted.all():
        return entry
    index = np.flatnonzero(wanted)
    taps = entry.taps.index_select(0, upload(index, entry.taps.device))
    return Pending(taps, entry.rows[index], entry.positions[index])
