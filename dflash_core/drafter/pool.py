"""The context pool: keys and values of committed positions, for all draft layers and all requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.drafter.context import ContextZone
from dflash_core.drafter.slots import Ints
from dflash_core.drafter.zone import Zone
from dflash_core.errors import SettingsError
from dflash_core.spec import DraftSpec
from dflash_core.upload import upload

FIRST_SLOTS = 1024
"""Slots of a zone before it first grows."""


@dataclass(frozen=True)
class ContextRead:
    """What one forward reads.

    Attributes:
        anchors: [B] int64, positions of the rows' anchors (their committed lengths).
        zones: for `DraftNetwork.forward`.
    """

    anchors: Tensor
    zones: tuple[ContextZone, ...]


def windows(spec: DraftSpec, draft_window: int | None) -> list[int | None]:
    """How many committed positions each layer keeps: its own window or the user's, whichever is shorter.

    Raises:
        SettingsError: draft_window is below 1.
    """
    if draft_window is not None and draft_window < 1:
        raise SettingsError(
            f"draft_window is {draft_window}; it must be at least 1, or None for all of the context."
        )
    bounds = ([w for w in (layer.window, draft_window) if w is not None] for layer in spec.layers)
    return [min(bound, default=None) for bound in bounds]


class ContextPool:
    """Zones of token slots, one a kept length. Row b is request b, and grows by committed positions.

    Nothing is ever moved: appending writes new slots, cropping forgets slots, leaving returns slots.
    """

    def __init__(
        self,
        spec: DraftSpec,
        *,
        draft_window: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        max_slots: int | None = None,
    ) -> None:
        """
        Args:
            draft_window: keep at most this many positions in any layer.
            dtype: of keys and values here; the network computes in its own.
            max_slots: limit of slots a zone; `None` grows as needed.

        Raises:
            SettingsError: a number makes no sense.
        """
        if max_slots is not None and max_slots < 1:
            raise SettingsError(
                f"max_context_slots is {max_slots}; it must be at least 1, or None for no limit."
            )
        kept = windows(spec, draft_window)
        self._device = torch.device(device)
        self._lengths: Ints = np.zeros(0, dtype=np.int64)
        self.zones = tuple(
            Zone(
                tuple(index for index, other in enumerate(kept) if other == keep),
                keep,
                spec.num_kv_heads,
                spec.head_dim,
                dtype=dtype,
                device=self._device,
                slots=FIRST_SLOTS,
                max_slots=max_slots,
            )
            for keep in dict.fromkeys(kept)
        )

    @property
    def lengths(self) -> Ints:
        """[B] positions appended a row."""
        return self._lengths.copy()

    @property
    def reach(self) -> int | None:
        """Older positions than this many are kept by no layer; `None` when one keeps all."""
        keeps = [zone.keep for zone in self.zones]
        return None if None in keeps else max(keep for keep in keeps if keep is not None)

    def add_row(self) -> None:
        """Append an empty row."""
        self._lengths = np.append(self._lengths, 0)
        for zone in self.zones:
            zone.add_row()

    def keep_rows(self, rows: Sequence[int]) -> None:
        """New row i is old row `rows[i]`; the slots of all others become free."""
        index = np.asarray(rows, dtype=np.int64)
        self._lengths = self._lengths[index]
        for zone in self.zones:
            zone.keep_rows(index)

    def crop(self, row: int, length: int) -> None:
        """Forget a row's positions from `length` on, without moving anything.

        Raises:
            ValueError: the row is shorter than that.
        """
        if not 0 <= length <= self._lengths[row]:
            raise ValueError(
                f"Row {row} has {self._lengths[row]} positions; it cannot be cropped to {length}."
            )
        self._lengths[row] = length
        for zone in self.zones:
            zone.crop(row, length)

    def append(self, rows: Ints, positions: Ints, lengths: Ints, k: Tensor, v: Tensor) -> None:
        """Store M new positions.

        Args:
            rows, positions: [M]; of each row, all positions from its length (or from the oldest that `reach`
                still includes) to its new length - 1.
            lengths: [B], the new lengths.
            k, v: [L, M, Hkv, d].

        Raises:
            RequestError: a zone is full; nothing has changed then.
        """
        for zone in self.zones:
            zone.reserve(lengths)
        for zone in self.zones:
            slots, chosen = zone.place(rows, positions, lengths)
            zone.write(self._tensor(slots), *(self._part(x, zone, chosen) for x in (k, v)))
        self._lengths = lengths.copy()

    def read(self, rows: Ints | None = None) -> ContextRead:
        """A view of these rows (of all when `None`)."""
        at = slice(None) if rows is None else rows
        spans = [tuple(part[at] for part in zone.span(self._lengths)) for zone in self.zones]
        packed = [self._lengths[at], *(part for span in spans for part in span)]
        anchors, *parts = self._tensor(np.stack(packed)).unbind()
        chosen = None if rows is None else self._tensor(rows)
        zones = []
        for index, (zone, (_, counts)) in enumerate(zip(self.zones, spans, strict=True)):
            width = int(counts.max(initial=0))
            full = bool((counts == width).all())
            view = zone.view(parts[2 * index], parts[2 * index + 1], width, full, chosen)
            zones.append(ContextZone(zone.layers, zone.k, zone.v, view))
        return ContextRead(anchors, tuple(zones))

    def _part(self, x: Tensor, zone: Zone, chosen: Ints | None) -> Tensor:
        """[L, M, Hkv, d] of all layers to [L of the zone, m, Hkv, d]."""
        if len(zone.layers) < x.shape[0]:
            x = x.index_select(0, torch.tensor(zone.layers, device=x.device))
        if chosen is None or len(chosen) == x.shape[1]:
            return x
        return x.index_select(1, self._tensor(chosen))

    def _tensor(self, values: Ints) -> Tensor:
        return upload(np.ascontiguousarray(values), self._device)
