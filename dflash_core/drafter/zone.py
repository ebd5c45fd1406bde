"""One zone of the context pool: the keys and values of the layers that keep equally much context."""

import numpy as np
import torch
from torch import Tensor

from dflash_core.drafter.context import ContextView
from dflash_core.drafter.slots import Ints, SlotAllocator, SlotTable
from dflash_core.errors import RequestError
from dflash_kernels.write_context import write_context


class Zone:
    """Slots `[L, num_slots, Hkv, d]` for K and for V, shared by all rows.

    With `keep` a row has at most that many slots, used as a ring: position p lies in column `p % keep`, so a
    new position overwrites the one that has just left the window. Without it, position p lies in column p.
    """

    def __init__(
        self,
        layers: tuple[int, ...],
        keep: int | None,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
        max_slots: int | None,
    ) -> None:
        self.layers = layers
        self.keep = keep
        slots = slots if max_slots is None else min(slots, max_slots)
        self.k = torch.empty(len(layers), slots, kv_heads, head_dim, dtype=dtype, device=device)
        self.v = torch.empty_like(self.k)
        self._max_slots = max_slots
        self._allocator = SlotAllocator(slots)
        self._table = SlotTable(device)
        # slots a row holds, and the oldest position that its ring can still hold
        self._held: Ints = np.zeros(0, dtype=np.int64)
        self._oldest: Ints = np.zeros(0, dtype=np.int64)

    @property
    def num_slots(self) -> int:
        return self._allocator.total

    @property
    def free(self) -> int:
        return self._allocator.free

    @property
    def allocated(self) -> int:
        """Slots that rows hold; `allocated + free == num_slots` at any time."""
        return int(self._held.sum())

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def add_row(self) -> None:
        self._held = np.append(self._held, 0)
        self._oldest = np.append(self._oldest, 0)
        self._table.fit(len(self._held), 1)

    def keep_rows(self, rows: Ints) -> None:
        """New row i is old row `rows[i]`; the slots of all others become free."""
        for row in np.setdiff1d(np.arange(len(self._held)), rows):
            self._allocator.give_back(self._table.row(row, 0, self._held[row]))
        self._table.keep(rows)
        self._held = self._held[rows]
        self._oldest = self._oldest[rows]

    def crop(self, row: int, length: int) -> None:
        """Forget a row's positions from `length` on. No key or value moves.

        A ring gives nothing back: what it had overwritten stays lost, so it is shorter until it fills again.
        """
        if self.keep is None and length < self._held[row]:
            self._allocator.give_back(self._table.row(row, length, self._held[row]))
            self._held[row] = length

    def reserve(self, lengths: Ints) -> None:
        """Make room for rows of these lengths, or raise before anything has changed.

        Raises:
            RequestError: the zone would need more slots than its limit.
        """
        wanted = self._wanted(lengths)
        need = int(wanted.sum())
        self._table.fit(len(wanted), int(wanted.max(initial=1)))
        if need <= self.num_slots:
            return
        if self._max_slots is not None and need > self._max_slots:
            raise RequestError(
                f"The draft context needs {need} slots for {len(wanted)} requests, but max_context_slots is "
                f"{self._max_slots}; raise it, set draft_window, or run fewer or shorter requests at once."
            )
        total = self.num_slots
        while total < need:
            total *= 2
        self._grow(total if self._max_slots is None else min(total, self._max_slots))

    def place(self, rows: Ints, positions: Ints, lengths: Ints) -> tuple[Ints, Ints | None]:
        """Slots for new positions; `reserve(lengths)` has been called.

        Args:
            rows, positions: [M]; of each row, all positions from its old length (or, where a window makes
                older ones pointless, a later one) to its new length - 1.
            lengths: [B], lengths of all rows after this.

        Returns:
            slots: [m] of those that the window still reaches.
            chosen: which of the M these are; `None` when all.
        """
        chosen = None
        columns = positions
        if self.keep is not None:
            chosen = np.flatnonzero(positions >= lengths[rows] - self.keep)
            rows, positions = rows[chosen], positions[chosen]
            columns = positions % self.keep
            np.maximum(self._oldest, lengths - self.keep, out=self._oldest)
        new = columns >= self._held[rows]
        fresh = int(new.sum())
        if fresh:
            self._table.write(rows[new], columns[new], self._allocator.take(fresh))
            self._held = self._wanted(lengths)
        return self._table.read(rows, columns), chosen

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values [L, m, Hkv, d] of this zone's layers."""
        write_context(self.k, self.v, slots, k, v)

    def span(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Position of the oldest key and number of keys, of every row of these lengths."""
        if self.keep is None:
            return np.zeros_like(lengths), lengths
        starts = np.minimum(np.maximum(lengths - self.keep, self._oldest), lengths)
        return starts, lengths - starts

    def view(
        self, starts: Tensor, counts: Tensor, width: int, full: bool, rows: Tensor | None
    ) -> ContextView:
        """What `span` says, as tensors [B] on the device, with the slots [B, width].

        Args:
            width: the largest count. full: whether all counts are equal.
            rows: [B] int64, the rows meant; the first B when `None`.
        """
        table = self._table.device[:, : width if self.keep is None else self.keep]
        slots = table[: len(starts)] if rows is None else table.index_select(0, rows)
        if self.keep is not None:
            steps = torch.arange(width, device=slots.device)
            slots = slots.gather(1, (starts[:, None] + steps) % self.keep)
        return ContextView(slots, starts, None if full else counts)

    def _wanted(self, lengths: Ints) -> Ints:
        """[B] slots that rows of these lengths hold."""
        return np.maximum(lengths if self.keep is None else np.minimum(lengths, self.keep), self._held)

    def _grow(self, total: int) -> None:
        for name in ("k", "v"):
            old: Tensor = getattr(self, name)
            new = old.new_empty(old.shape[0], total, *old.shape[2:])
            new[:, : old.shape[1]] = old
            setattr(self, name, new)
        self._allocator.grow(total)
