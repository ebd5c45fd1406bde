"""Specification of `block_attention`."""

import torch
from torch import Tensor


def block_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
    starts: Tensor,
    lengths: Tensor | None,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    block_lengths: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
    causal: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend from the first Q slots of a block to the row's context and to the block's S slots.

    Pool slots that belong to no row, and block slots past a row's length, may hold anything, NaN included.

    Args:
        q: [B, Q, H, d], Q <= S: the queries of the block's leading slots.
        k_pool, v_pool: [num_slots, Hkv, d], one layer of the context pool, any float dtype.
        slots: [B, T] int64, where each row's context keys lie, oldest first.
        starts: [B] int64, position of a row's first context key; the others follow without gaps.
        lengths: [B] int64, context keys a row, 0 to T; `None` when every row has T.
        k, v: [B, S, Hkv, d], the block's own.
        positions: [B, S] int64, absolute positions of the block's slots.
        block_lengths: [B] int64, slots a row, 1 to S; `None` when every row has S. Slots past it are seen
            by nobody but themselves, and what they attend to has no meaning.
        scale: multiplies the scores.
        window: a key is seen at a distance below `window`; both ways when not causal. `None` is no limit.
        causal: a key is seen from its own position on.
        sinks: [H], logits of one extra key a head that has no value.

    Returns:
        [B, Q, H, d] in the dtype of `q`, computed in float32.
    """
    batch, queries, heads, size = q.shape
    context, block, kv_heads = slots.shape[1], k.shape[1], k.shape[2]
    keys = torch.cat([gather(k_pool, slots), k], 1).float()  # [B, T + S, Hkv, d]
    # a weight of 0 does not undo a NaN
    values = torch.cat([_zeroed(gather(v_pool, slots), lengths), _zeroed(v, block_lengths)], 1).float()
    visible = _visible(
        context, queries, block, starts, lengths, positions, block_lengths, window=window, causal=causal
    )

    grouped = q.float().view(batch, queries, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
    scores = grouped.reshape(batch, kv_heads, -1, size) @ keys.permute(0, 2, 3, 1) * scale
    scores = scores.view(batch, heads, queries, context + block)
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
    if sinks is not None:
        extra = sinks.float().view(1, heads, 1, 1).expand(batch, heads, queries, 1)
        scores = torch.cat([scores, extra], -1)
    weights = scores.softmax(-1)[..., : context + block]
    out = weights.reshape(batch, kv_heads, -1, context + block) @ values.transpose(1, 2)
    out = out.view(batch, kv_heads, heads // kv_heads, queries, size).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, queries, heads, size).to(q.dtype)


def gather(pool: Tensor, slots: Tensor) -> Tensor:
    """[num_slots, Hkv, d] at [B, T] -> [B, T, Hkv, d]."""
    return pool.index_select(0, slots.flatten()).view(*slots.shape, *pool.shape[1:])


def _zeroed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """[B, n, Hkv, d] with everything past a row's length set to 0."""
    if lengths is None:
        return x
    past = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(past[:, :, None, None], 0.0)


def all_visible(
    keys: int, lengths: Tensor | None, block_lengths: Tensor | None, window: int | None, causal: bool
) -> bool:
    """Whether the shapes alone say that every query sees all of its row's `keys`, context and block."""
    within = window is None or keys <= window
    return lengths is None and block_lengths is None and within and not causal


def _visible(
    context: int,
    queries: int,
    block: int,
    starts: Tensor,
    lengths: Tensor | None,
    positions: Tensor,
    block_lengths: Tensor | None,
    *,
    window: int | None,
    causal: bool,
) -> Tensor | None:
    """[B, Q, T + S] bool, or `None` when the shapes alone say that everything is visible."""
    if all_visible(context + block, lengths, block_lengths, window, causal):
        return None
    device = positions.device
    in_context = torch.arange(context, device=device)
    in_block = torch.arange(block, device=device)
    key_positions = torch.cat([starts[:, None] + in_context, positions], 1)  # [B, T + S]
    distance = positions[:, :queries, None] - key_positions[:, None, :]  # [B, Q, T + S]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        visible &= distance >= 0
    if window is not None:
        visible &= distance < window
        if not causal:
            visible &= distance > -window
    if lengths is not None:
        visible[..., :context] &= (in_context < lengths[:, None])[:, None]
    if block_lengths is not None:
        real = (in_block < block_lengths[:, None])[:, None]
        itself = in_block == in_block[:queries, None]
        visible[..., context:] &= real | itself
    return visible
