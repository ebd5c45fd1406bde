"""The context pool of an engine that numbers its own KV slots: the draft's keys and values lie in the same.

What the engine does with a slot then holds for the draft as well: a prefix found in its cache brings the
draft's context along, a prompt may be run in pieces, and a slot that is given to somebody else is overwritten
by whoever fills it next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.drafter.context import ContextView, ContextZone
from dflash_core.drafter.network import DraftNetwork
from dflash_core.drafter.pool import ContextRead, windows
from dflash_core.drafter.slots import Ints
from dflash_core.upload import upload
from dflash_kernels.write_context import write_context


@dataclass(frozen=True)
class _Zone:
    layers: tuple[int, ...]
    keep: int | None
    k: Tensor
    v: Tensor


class HostedPool:
    """Keys and values `[L, num_slots, Hkv, d]` of all draft layers, in slots that the engine hands out.

    It has no rows and frees nothing: which slots hold which positions is said at every read.
    """

    def __init__(
        self,
        network: DraftNetwork,
        num_slots: int,
        *,
        draft_window: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """
        Args:
            num_slots: one more than the engine's largest slot number.
            draft_window: every layer sees at most this many committed positions.
            dtype: of keys and values here; the network's when `None`.

        Raises:
            SettingsError: draft_window is below 1.
        """
        self._network = network
        spec = network.spec
        kept = windows(spec, draft_window)
        self._zones = []
        for keep in dict.fromkeys(kept):
            layers = tuple(index for index, other in enumerate(kept) if other == keep)
            shape = (len(layers), num_slots, spec.num_kv_heads, spec.head_dim)
            # zeros, because what an engine pads its batches with may point at slots that nobody has filled
            k = torch.zeros(shape, dtype=dtype or network.dtype, device=network.device)
            self._zones.append(_Zone(layers, keep, k, torch.zeros_like(k)))

    @property
    def num_slots(self) -> int:
        return self._zones[0].k.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(zone.k.nbytes + zone.v.nbytes for zone in self._zones)

    @torch.no_grad()
    def write(self, taps: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Store the context of M positions.

        Args:
            taps: [M, P * D] of the target.
            positions: [M] int64, in their sequences.
            slots: [M] int64, where the engine keeps the target's own keys and values of them. A slot that
                appears twice holds either of the two, which is for padding only.
        """
        if not len(slots):
            return
        k, v = self._network.context_kv(self._network.context_features(taps), positions)
        for zone in self._zones:
            if len(zone.layers) == k.shape[0]:
                write_context(zone.k, zone.v, slots, k, v)
            else:
                chosen = torch.tensor(zone.layers, device=k.device)
                write_context(zone.k, zone.v, slots, k.index_select(0, chosen), v.index_select(0, chosen))

    def rows(self, table: Tensor, lengths: Sequence[int]) -> "HostedContext":
        """The committed context of the B requests of one cycle.

        Args:
            table: [B, T] integers, the slot of every position; anything past a row's length.
            lengths: B committed lengths, the anchor not among them, 0 to T.
        """
        return HostedContext(self, table.to(torch.int64), np.asarray(lengths, dtype=np.int64))

    def read(self, table: Tensor, lengths: Ints) -> ContextRead:
        """See `rows`; `table` [B, T] int64, `lengths` [B]."""
        device = table.device
        begin = [
            np.zeros_like(lengths) if zone.keep is None else np.maximum(lengths - zone.keep, 0)
            for zone in self._zones
        ]
        held, *ranges = upload(np.stack([lengths, *(x for at in begin for x in (at, lengths - at))]), device)
        zones = []
        for index, zone in enumerate(self._zones):
            counts = lengths - begin[index]
            width = int(counts.max(initial=0))
            at, real = ranges[2 * index : 2 * index + 2]
            if zone.keep is None:
                slots = table[:, :width]
            else:
                columns = at[:, None] + torch.arange(width, device=device)
                slots = table.gather(1, columns.clamp(max=max(table.shape[1] - 1, 0)))
            if (counts == width).all():
                view = ContextView(slots, at, None)
            else:
                # the engine's leftovers past a row's end are numbers of any size
                past = torch.arange(width, device=device) >= real[:, None]
                view = ContextView(slots.masked_fill(past, 0), at, real)
            zones.append(ContextZone(zone.layers, zone.k, zone.v, view))
        return ContextRead(held, tuple(zones))


@dataclass
class HostedContext:
    """The rows of one cycle, for `BlockDrafter.propose`. It is made anew every cycle, and owns no slot."""

    pool: HostedPool
    table: Tensor
    held: Ints

    @property
    def lengths(self) -> list[int]:
        """Committed positions a row, the anchor not among them."""
        lengths: list[int] = self.held.tolist()
        return lengths

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order: new row i is old row `rows[i]`. Slots stay the engine's."""
        index = np.asarray(rows, dtype=np.int64)
        self.table = self.table[upload(index, self.table.device)]
        self.held = self.held[index]

    def read(self, rows: Ints | None) -> ContextRead:
        """The whole committed context of these rows (of all when `None`)."""
        if rows is None:
            return self.pool.read(self.table, self.held)
        chosen = upload(rows, self.table.device)
        return self.pool.read(self.table.index_select(0, chosen), self.held[rows])
