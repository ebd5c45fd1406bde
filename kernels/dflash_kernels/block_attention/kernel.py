"""`block_attention` in Triton: the query heads of one key head a program, over context and block in tiles."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
"""Keys looked at together."""


@triton.jit
def _seen(distance, WINDOW: tl.constexpr, CAUSAL: tl.constexpr):
    """Which keys are near enough, by how far they lie before the query."""
    seen = distance == distance
    if CAUSAL:
        seen = seen & (distance >= 0)
    if WINDOW > 0:
        seen = seen & (distance < WINDOW)
        if not CAUSAL:
            seen = seen & (distance > -WINDOW)
    return seen


@triton.jit
def _take(scores, values, best, total, out):
    """One tile more of a running softmax; scores are -inf where a key is hidden."""
    now = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp(scores - base[:, None])
    kept = tl.exp(best - base)
    out = out * kept[:, None] + tl.dot(weights, values, input_precision="ieee")
    return now, total * kept + tl.sum(weights, 1), out


@triton.jit
def _attend(
    q, k_pool, v_pool, slots, starts, lengths, k, v, positions, block_lengths, sinks, result,
    scale, context, queries, block, heads, size,
    q_row, q_slot, q_head, pool_slot, pool_head, k_row, k_slot, k_head, v_row, v_slot, v_head,
    slots_row, positions_row,
    GROUP: tl.constexpr, RAGGED: tl.constexpr, SHORT: tl.constexpr, SINKS: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, OWN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    head, query = kv_head * GROUP + line // queries, line % queries
    real = line < GROUP * queries
    at = tl.arange(0, SIZE)
    wide = at < size
    place = row * q_row + query[:, None] * q_slot + head[:, None] * q_head + at[None, :]
    asked = tl.load(q + place, mask=real[:, None] & wide[None, :], other=0.0).to(tl.float32)
    asked_at = tl.load(positions + row * positions_row + query, mask=real, other=0)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, SIZE], tl.float32)
    if SINKS:
        best = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32)
        total += 1.0
    length = context
    if RAGGED:
        length = tl.load(lengths + row).to(tl.int32)
    first = tl.load(starts + row)
    for begin in range(0, length, KEYS):
        key = begin + tl.arange(0, KEYS)
        there = key < length
        slot = tl.load(slots + row * slots_row + key, mask=there, other=0)
        lies = slot[:, None] * pool_slot + kv_head * pool_head + at[None, :]
        inside = there[:, None] & wide[None, :]
        keys = tl.load(k_pool + lies, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(v_pool + lies, mask=inside, other=0.0).to(tl.float32)
        scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scale
        seen = there[None, :] & _seen(asked_at[:, None] - (first + key)[None, :], WINDOW, CAUSAL)
        best, total, out = _take(tl.where(seen, scores, float("-inf")), values, best, total, out)

    own = tl.arange(0, OWN)
    there = own < block
    held = there
    if SHORT:
        held = own < tl.load(block_lengths + row)
    own_at = tl.load(positions + row * positions_row + own, mask=there, other=0)
    inside = there[:, None] & wide[None, :]
    keys_at = row * k_row + own[:, None] * k_slot + kv_head * k_head + at[None, :]
    keys = tl.load(k + keys_at, mask=inside, other=0.0).to(tl.float32)
    values_at = row * v_row + own[:, None] * v_slot + kv_head * v_head + at[None, :]
    values = tl.load(v + values_at, mask=held[:, None] & wide[None, :], other=0.0).to(tl.float32)
    scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scale
    seen = held[None, :] | (there[None, :] & (own[None, :] == query[:, None]))
    seen = seen & _seen(asked_at[:, None] - own_at[None, :], WINDOW, CAUSAL)
    best, total, out = _take(tl.where(seen, scores, float("-inf")), values, best, total, out)

    out = out / total[:, None]
    into = ((row * queries + query[:, None]) * heads + head[:, None]) * size + at[None, :]
    tl.store(result + into, out.to(result.dtype.element_ty), mask=real[:, None] & wide[None, :])


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
    """See `reference.block_attention`. Keys and values of both pools lie alike."""
    batch, queries, heads, size = q.shape
    kv_heads, block = k.shape[2], k.shape[1]
    group = heads // kv_heads
    q, k, v, k_pool, v_pool, slots, positions = (
        each if each.stride(-1) == 1 else each.contiguous()
        for each in (q, k, v, k_pool, v_pool, slots, positions)
    )
    result = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    rows = max(16, min(64, triton.next_power_of_2(group * queries)))
    if not result.numel():
        return result
    _attend[(batch, kv_heads, triton.cdiv(group * queries, rows))](
        q,
        k_pool,
        v_pool,
        slots,
        starts,
        starts if lengths is None else lengths,
        k,
        v,
        positions,
        starts if block_lengths is None else block_lengths,
        q if sinks is None else sinks,
        result,
        scale,
        slots.shape[1],
        queries,
        block,
        heads,
        size,
        *q.stride()[:3],
        *k_pool.stride()[:2],
        *k.stride()[:3],
        *v.stride()[:3],
        slots.stride(0),
        positions.stride(0),
        GROUP=group,
        RAGGED=lengths is not None,
        SHORT=block_lengths is not None,
        SINKS=sinks is not None,
        WINDOW=window or 0,
        CAUSAL=causal,
        ROWS=rows,
        KEYS=TILE,
        OWN=max(16, triton.next_power_of_2(block)),
        SIZE=max(16, triton.next_power_of_2(size)),
    )
    return result
