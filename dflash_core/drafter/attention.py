"""Attention of a draft layer: the block's queries to the injected context and to the block."""

from dataclasses import dataclass

from torch import Tensor, nn

from dflash_core.drafter.context import ContextView
from dflash_core.drafter.weights import RMSNorm, Weights, frozen, linear
from dflash_core.spec import DraftSpec
from dflash_kernels.block_attention import block_attention
from dflash_kernels.rope import rope, rope_angles


@dataclass(frozen=True)
class Block:
    """What all layers share in one forward.

    Attributes:
        positions: [B, S] int64.
        lengths: [B] int64, slots a row; `None` when all rows have S.
        cos, sin: [B, S, d / 2].
    """

    positions: Tensor
    lengths: Tensor | None
    cos: Tensor
    sin: Tensor


class Rotary(nn.Module):
    """Rotary angles of positions."""

    inverse_frequencies: Tensor

    def __init__(self, inverse_frequencies: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)
        self.scale = scale

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rope_angles(positions, self.inverse_frequencies, self.scale)


class ContextProjection(nn.Module):
    """Keys and values that context features become in every layer, as one product.

    The layers' own key and value projections are rows of this one's weight, not copies.
    """

    def __init__(self, spec: DraftSpec, weights: Weights) -> None:
        super().__init__()
        self.shape = (spec.num_layers, 2, spec.num_kv_heads, spec.head_dim)
        names = [f"layers.{i}.self_attn.{which}_proj" for i in range(spec.num_layers) for which in ("k", "v")]
        bias = weights.rows(*(f"{n}.bias" for n in names)) if spec.attention_bias else None
        self.kv_proj = linear(weights.rows(*(f"{n}.weight" for n in names)), bias)
        k_norms = weights.rows(*(f"layers.{i}.self_attn.k_norm.weight" for i in range(spec.num_layers)))
        self.k_norm = RMSNorm(k_norms.view(spec.num_layers, 1, spec.head_dim), spec.rms_norm_eps)

    def forward(self, features: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Features [M, D] and angles [M, d / 2] to k, v [L, M, Hkv, d]."""
        layers, _, heads, size = self.shape
        k, v = self.kv_proj(features).view(-1, *self.shape).unbind(2)  # [M, L, Hkv, d]
        k = rope(self.k_norm(k).view(-1, layers * heads, size), cos, sin)
        return k.view(-1, layers, heads, size).transpose(0, 1), v.transpose(0, 1)

    def layer(self, index: int) -> tuple[nn.Linear, Tensor]:
        """One layer's projection [2 * Hkv * d, D] and key norm weight [d], sharing this module's memory."""
        _, pair, heads, size = self.shape
        rows = slice(index * pair * heads * size, (index + 1) * pair * heads * size)
        bias = self.kv_proj.bias.data[rows] if self.kv_proj.bias is not None else None
        return linear(self.kv_proj.weight.data[rows], bias), self.k_norm.weight.data[index, 0]


class DraftAttention(nn.Module):
    """Grouped-query attention with normed queries and keys, optionally with sinks and scaled values."""

    def __init__(self, spec: DraftSpec, weights: Weights, context: ContextProjection, index: int) -> None:
        super().__init__()
        name = f"layers.{index}.self_attn"
        bias = spec.attention_bias
        self.q_proj = linear(
            weights(f"{name}.q_proj.weight"), weights(f"{name}.q_proj.bias") if bias else None
        )
        self.kv_proj, k_norm = context.layer(index)
        self.o_proj = linear(
            weights(f"{name}.o_proj.weight"), weights(f"{name}.o_proj.bias") if bias else None
        )
        self.q_norm = RMSNorm(weights(f"{name}.q_norm.weight"), spec.rms_norm_eps)
        self.k_norm = RMSNorm(k_norm, spec.rms_norm_eps)
        self.sinks = frozen(weights(f"{name}.attention_sink_bias")) if spec.attention_sinks else None
        self.heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self.value_scale = spec.attention_value_scale
        self.window = spec.layers[index].window
        self.causal = spec.layers[index].causal

    def forward(
        self, x: Tensor, block: Block, k_pool: Tensor, v_pool: Tensor, view: ContextView, outputs: int
    ) -> Tensor:
        """Normed block x [B, S, D] to the attention output [B, outputs, D] of its leading slots."""
        batch, slots = x.shape[:2]
        heads, kv_heads, size = self.heads
        q = self.q_norm(self.q_proj(x[:, :outputs]).view(batch, outputs, heads, size))
        k, v = self.kv_proj(x).view(batch, slots, 2, kv_heads, size).unbind(2)
        out = block_attention(
            rope(q, block.cos[:, :outputs], block.sin[:, :outputs]),
            k_pool,
            v_pool,
            view.slots,
            view.starts,
            view.lengths,
            rope(self.k_norm(k), block.cos, block.sin),
            v,
            block.positions,
            block.lengths,
            scale=size**-0.5,
            window=self.window,
            causal=self.causal,
            sinks=self.sinks,
        )
        if self.value_scale != 1:
            out = out * self.value_scale
        projected: Tensor = self.o_proj(out.flatten(2))
        return projected
