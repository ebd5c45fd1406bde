"""Attention masks over a ragged cache: a node sees its row's committed slots, its ancestors and itself."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dflash_backends.transformers.span import Span

Masks = Mapping[str, Tensor | None]
"""Layer type -> additive mask [B, 1, N, T]; `None` where nothing is hidden."""


def build_masks(
    windows: Mapping[str, int | None],
    span: Span,
    visible: Tensor,
    depths: Tensor,
    dtype: torch.dtype,
) -> Masks:
    """One mask per kind of attention layer, for one forward.

    Args:
        windows: layer type -> sliding window in positions, `None` for full attention.
        span: where the forward writes.
        visible: [B, N, N] bool, which node sees which.
        depths: [B, N] int64; a node's position is its row's start + depth.
        dtype: of the model; the masks are added to its attention scores.
    """
    hides = any(window is not None and span.total > window for window in windows.values())
    if span.width == 1 and span.even is not None and not hides:
        return dict.fromkeys(windows)  # a lone node in the last slot of equal rows sees all there is
    positions = span.starts_tensor[:, None] + depths  # [B, N]
    seen = _scatter(span, span.slots_before_block(), visible)  # [B, N, T]
    masks: dict[str, Tensor | None] = {}
    for kind, window in windows.items():
        allowed = seen
        if window is not None and span.total > window:
            allowed = seen & (positions[:, :, None] - _slot_positions(span, positions)[:, None] < window)
        hidden = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        masks[kind] = hidden.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
    return masks


def _scatter(span: Span, before: Tensor, visible: Tensor) -> Tensor:
    """[B, N, T] bool: the slots before the block, and within the block those that `visible` names."""
    batch, width = visible.shape[:2]
    seen = before[:, None].expand(batch, width, span.total).clone()
    if span.even is not None:
        seen[:, :, span.even :] = visible
        return seen
    return seen.scatter_(2, span.slots[:, None].expand(batch, width, width), visible)


def _slot_positions(span: Span, positions: Tensor) -> Tensor:
    """[B, T]: the position of what each slot holds; slots of committed tokens are their own positions."""
    slots = torch.arange(span.total, device=positions.device)
    return slots.expand(positions.shape[0], -1).scatter(1, span.slots, positions)
