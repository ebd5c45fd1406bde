"""Attention for SGLang in torch: prompts (in pieces), single tokens, and chains and trees to verify."""

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dflash_core.errors import UnsupportedError


@dataclass(frozen=True)
class Span:
    """One request in one forward.

    Attributes:
        queries: its rows among all tokens of the forward.
        slots: [T] int64, of all keys it may see, its own new tokens last.
        positions: [n] int64 of the queries, and [T] of the keys.
        key_positions: see `positions`.
        visible: [n, T] bool; `None` when the queries see every key.
    """

    queries: slice
    slots: Tensor
    positions: Tensor
    key_positions: Tensor
    visible: Tensor | None


class TorchAttention(AttentionBackend):
    """Gathers each request's keys by slot, and multiplies. Every mode ends up as the same few lines."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        self.device = model_runner.device
        self._table: Tensor = model_runner.req_to_token_pool.req_to_token
        self._pool = model_runner.token_to_kv_pool
        if hasattr(self._pool, "full_to_swa_index_mapping"):
            raise UnsupportedError(
                "The dflash_cpu platform keeps one KV pool for all layers; start with "
                "--disable-hybrid-swa-memory for a target with sliding-window layers."
            )
        self._spans: list[Span] = []
        self._windowed: dict[tuple[int, int], Tensor] = {}

    def support_triton(self) -> bool:
        return False

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Work out, once for all layers, which token sees which slots."""
        self._spans = spans(forward_batch, self._table)
        self._windowed = {}

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **extra: Any,
    ) -> Tensor:
        """Also what verifies: all that differs is in the spans."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, extra)

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **extra: Any,
    ) -> Tensor:
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, extra)

    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save: bool, extra: dict[str, Any]
    ) -> Tensor:
        refuse(layer, extra)
        if save and k is not None:
            self._pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, None), k, v)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys = self._pool.get_key_buffer(layer.layer_id)
        values = self._pool.get_value_buffer(layer.layer_id)
        out = q.new_empty(len(queries), layer.tp_q_head_num, layer.v_head_dim)
        causal = layer.attn_type != AttentionType.ENCODER_ONLY
        for index, span in enumerate(self._spans):
            out[span.queries] = attend(
                queries[span.queries],
                keys.index_select(0, span.slots),
                values.index_select(0, span.slots),
                self._mask(index, layer.sliding_window_size) if causal else None,
                layer.scaling,
                layer.logit_cap,
            )
        return out.flatten(1)

    def _mask(self, index: int, window: int | None) -> Tensor | None:
        """[n, T] bool of one request under one layer's window, made once a forward."""
        span = self._spans[index]
        if window is None or window < 0 or len(span.slots) <= window:
            return span.visible
        made = self._windowed.get((index, window))
        if made is None:
            # SGLang's window counts the keys before the query, without the query's own
            made = span.key_positions >= span.positions[:, None] - window
            made = made if span.visible is None else made & span.visible
            self._windowed[(index, window)] = made
        return made


def refuse(layer: Any, extra: dict[str, Any]) -> None:
    """Raise for what a layer may ask of other backends.

    Raises:
        UnsupportedError: cross-attention, or attention sinks.
    """
    asked = [name for name, value in extra.items() if value is not None]
    if layer.is_cross_attention or asked:
        what = "cross-attention" if layer.is_cross_attention else ", ".join(asked)
        raise UnsupportedError(
            f"The dflash_cpu platform has no attention with {what}; use a GPU for this target."
        )


def spans(batch: Any, table: Tensor) -> list[Span]:
    """Who sees what in a forward: a prompt's tail, one new token, or the nodes of a chain or tree.

    Args:
        batch: SGLang's ForwardBatch.
        table: [rows, positions] slots.
    """
    rows = batch.req_pool_indices.tolist()
    lengths = batch.seq_lens.tolist()
    mode = batch.forward_mode
    trees: list[Tensor | None] = [None] * len(rows)
    if mode.is_decode_or_idle():
        counts, prefixes = [1] * len(rows), [length - 1 for length in lengths]
    elif mode.is_target_verify():
        counts, prefixes = [batch.spec_info.draft_token_num] * len(rows), lengths
        trees = visible_nodes(batch.spec_info.custom_mask, prefixes, batch.spec_info.draft_token_num)
    else:
        counts, prefixes = batch.extend_seq_lens.tolist(), batch.extend_prefix_lens.tolist()
    found, begin = [], 0
    for row, count, prefix, tree in zip(rows, counts, prefixes, trees, strict=True):
        queries = slice(begin, begin + count)
        begin += count
        found.append(span(queries, table[row, : prefix + count].long(), prefix, tree))
    return found


def span(queries: slice, slots: Tensor, prefix: int, tree: Tensor | None) -> Span:
    """A request with `prefix` older keys.

    Args:
        slots: [T] of all keys, the new ones last.
        tree: [n, n] bool, which new token sees which; `None` for a chain.
    """
    count = queries.stop - queries.start
    new = torch.arange(count)
    inside = new <= new[:, None] if tree is None else tree
    positions = prefix + (new if tree is None else tree.sum(-1) - 1)
    visible = torch.cat([torch.ones(count, prefix, dtype=torch.bool), inside], 1)
    return Span(
        queries=queries,
        slots=slots,
        positions=positions,
        key_positions=torch.cat([torch.arange(prefix), positions]),
        visible=None if count == 1 else visible,
    )


def visible_nodes(mask: Tensor | None, prefixes: list[int], nodes: int) -> list[Tensor | None]:
    """Each request's [nodes, nodes] part of a flat mask that is [nodes, prefix + nodes] a request."""
    if mask is None:
        return [None] * len(prefixes)
    found: list[Tensor | None] = []
    begin = 0
    for prefix in prefixes:
        size = nodes * (prefix + nodes)
        found.append(mask[begin : begin + size].view(nodes, prefix + nodes)[:, prefix:].bool())
        begin += size
    return found


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, cap: float | None
) -> Tensor:
    """Grouped-query attention of one request.

    Args:
        q: [n, H, d]. k, v: [T, Hkv, d]. visible: [n, T] bool; all when `None`.
        cap: scores are squashed to plus or minus this; 0 or `None` for no cap.

    Returns:
        [n, H, d of v].
    """
    q, k, v = q.transpose(0, 1), k.transpose(0, 1).to(q.dtype), v.transpose(0, 1).to(q.dtype)
    if not cap:
        out = scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=visible, scale=scale, enable_gqa=q.shape[0] != k.shape[0]
        )
        return out[0].transpose(0, 1)
    groups = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = ((q @ k.transpose(1, 2)).float() * scale / cap).tanh() * cap
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(0, 1)
