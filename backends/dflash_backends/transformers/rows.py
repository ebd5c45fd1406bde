"""K and V of one attention layer for many ragged rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_backends.transformers.span import Span

FIRST_CAPACITY = 256


class KeyValueRows:
    """Buffers [R, Hkv, capacity, d], grown by doubling; K and V may differ in d."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """K and V as far as they exist."""
        return tuple(buffer for buffer in (self._keys, self._values) if buffer is not None)

    def write(self, keys: Tensor, values: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Write [B, Hkv, N, d] where the span says.

        Returns:
            Views [B, Hkv, T, d] of the span's rows; slots behind a row's own end hold finite rubbish.
        """
        self._keys = _reserve(self._keys, keys, span)
        self._values = _reserve(self._values, values, span)
        for buffer, new in ((self._keys, keys), (self._values, values)):
            if span.even is None:
                buffer[span.row_index, :, span.slots] = new.transpose(1, 2)
            else:
                buffer[span.rows, :, span.even : span.total] = new
        return self._keys[span.rows, :, : span.total], self._values[span.rows, :, : span.total]

    def keep(self, rows: Sequence[int], moved: Sequence[tuple[int, int]], longest: int) -> None:
        """Move rows `(to, from)`; slots beyond `longest` stay behind."""
        if not moved:
            return
        for buffer in self.tensors:
            to, source = torch.tensor(moved, device=buffer.device).T
            buffer[to, :, :longest] = buffer[source, :, :longest]  # the right side is a copy


def _reserve(buffer: Tensor | None, new: Tensor, span: Span) -> Tensor:
    """The buffer, or a larger one with the same contents, with room for the span."""
    rows, slots = span.rows.stop, span.total
    had_rows, had_slots = (0, 0) if buffer is None else (buffer.shape[0], buffer.shape[2])
    if rows <= had_rows and slots <= had_slots and buffer is not None:
        return buffer
    more_rows = had_rows if rows <= had_rows else max(rows, 2 * had_rows)
    more_slots = had_slots if slots <= had_slots else max(slots, 2 * had_slots, FIRST_CAPACITY)
    # Zeros, since hidden slots are multiplied by a weight of 0, and normal tensors even under inference mode,
    # since a later forward without that mode writes into them too.
    with torch.inference_mode(False):
        grown = torch.zeros(
            (more_rows, new.shape[1], more_slots, new.shape[3]), dtype=new.dtype, device=new.device
        )
    if buffer is not None:
        grown[:had_rows, :, :had_slots] = buffer
    return grown
