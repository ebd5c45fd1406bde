"""K and V of one attention layer for many ragged rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_backends.transformers.span import Span

FIRST_CAPACITY = 256


class KeyValueRows:
    """Buffers [R, Hkv, capacity, d], grown by doubling; K and V may differ in d."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._rows = self._slots = 0

    def write(self, keys: Tensor, values: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Write [B, Hkv, N, d] where the span says.

        Returns:
            Views [B, Hkv, T, d] of the span's rows; slots behind a row's own end hold finite rubbish.
        """
        if span.last >= self._rows or span.total > self._slots:
            self._grow((keys, values), span)
        return _write(self.tensors[0], keys, span), _write(self.tensors[1], values, span)

    def keep(self, rows: Sequence[int], moved: Sequence[tuple[int, int]], longest: int) -> None:
        """Move rows `(to, from)`; slots beyond `longest` stay behind."""
        if not moved:
            return
        for buffer in self.tensors:
            to, source = torch.tensor(moved, device=buffer.device).T
            buffer[to, :, :longest] = buffer[source, :, :longest]  # the right side is a copy

    def _grow(self, new: Sequence[Tensor], span: Span) -> None:
        """Make room for the span; what is there stays."""
        had_rows, had_slots = self._rows, self._slots
        if span.last >= had_rows:
            self._rows = max(span.last + 1, 2 * had_rows)
        if span.total > had_slots:
            self._slots = max(span.total, 2 * had_slots, FIRST_CAPACITY)
        # Zeros, since hidden slots are multiplied by a weight of 0, and normal tensors even under inference
        # mode, since a later forward without that mode writes into them too.
        with torch.inference_mode(False):
            grown = [one.new_zeros(self._rows, one.shape[1], self._slots, one.shape[3]) for one in new]
        for buffer, old in zip(grown, self.tensors, strict=False):  # at first there is nothing old
            buffer[:had_rows, :, :had_slots] = old
        self.tensors = grown


def _write(buffer: Tensor, new: Tensor, span: Span) -> Tensor:
    if span.even is None:
        buffer[span.row_index, :, span.slots] = new.transpose(1, 2)
    seen = buffer.narrow(0, span.first, len(span.starts)).narrow(2, 0, span.total)
    if span.even is not None:
        seen.narrow(2, span.even, span.width).copy_(new)
    return seen
