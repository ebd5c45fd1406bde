"""The drafter as it is trained: many blocks of one sequence in one forward."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.checkpoint.dspark import FROM, INTO
from dflash_core.checkpoint.shapes import part_of, tensor_shapes
from dflash_core.drafter.layers import ACTIVATIONS
from dflash_core.drafter.markov import CANDIDATES
from dflash_core.drafter.rotary import inverse_frequencies
from dflash_core.errors import UnsupportedError
from dflash_core.spec import DraftSpec
from dflash_core.training.conv import dynamic_conv
from dflash_core.training.norm import rms_norm
from dflash_kernels.rope import rope_angles

SELECTOR = "candidate_selector."

CHOOSERS = ("selector", "Markov head")
"""Parts that choose among the candidates of a slot."""


@dataclass(frozen=True)
class Blocks:
    """Blocks that are drafted in one forward.

    Attributes:
        taps: [B, T, P * D], the target's hidden states of B sequences, padded.
        embeddings: [B, A, S, D], raw embeddings of anchor, MASK, ..., MASK; S is `DraftSpec.network_slots`.
        anchors: [B, A] int64, the anchors' positions; -1 for a block that is padding.
    """

    taps: Tensor
    embeddings: Tensor
    anchors: Tensor


class TrainableDraft(nn.Module):
    """The weights of a `DraftSpec` under their canonical names, and the network's forward over `Blocks`.

    It computes what `drafter.network.DraftNetwork` computes for one block at a time, without a pool.

    Raises:
        UnsupportedError: attention bias, sinks, scaled values, or an embedding or head of the draft's own.
    """

    def __init__(self, spec: DraftSpec, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        unusual = spec.attention_bias or spec.attention_sinks or spec.attention_value_scale != 1
        if unusual or spec.owns_embedding or spec.owns_head:
            raise UnsupportedError(
                "Only drafts that borrow the target's embedding and head, without attention bias, sinks or "
                "scaled values, can be trained."
            )
        self.spec = spec
        self.names = tuple(tensor_shapes(spec))
        self.body = tuple(name for name in self.names if part_of(name) not in CHOOSERS)
        self.weights = nn.ParameterDict(
            {_key(name): nn.Parameter(tensors[name].detach().float().clone()) for name in self.names}
        )
        frequencies, self.rope_scale = inverse_frequencies(spec.rope, spec.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The weights, float32, by canonical name."""
        return {name: self.weights[_key(name)].detach() for name in self.names}

    def parameter(self, name: str) -> nn.Parameter:
        """One weight."""
        weight: nn.Parameter = self.weights[_key(name)]
        return weight

    def forward(self, blocks: Blocks, dtype: torch.dtype) -> Tensor:
        """[B, A, S, D] after the final norm, computed in `dtype`; padding blocks hold finite rubbish."""
        spec = self.spec
        weights = {name: self.weights[_key(name)].to(dtype) for name in self.body}
        batch, count, slots, width = blocks.embeddings.shape
        context = self._norm(
            F.linear(blocks.taps.to(dtype), weights["fc.weight"]), weights["hidden_norm.weight"]
        )
        device = context.device
        length = context.shape[1]
        offsets = torch.arange(slots, device=device)
        positions = (blocks.anchors.clamp(min=0)[..., None] + offsets).view(batch, -1)
        angles = (
            self._angles(torch.arange(length, device=device)[None], dtype),
            self._angles(positions, dtype),
        )
        x = blocks.embeddings.to(dtype).view(batch, count * slots, width) * spec.input_embedding_scale
        biases: dict[object, tuple[Tensor, Tensor]] = {}
        for index, layer in enumerate(spec.layers):
            if layer not in biases:
                seen = see(blocks.anchors, slots, length, layer.window, layer.causal)
                context_bias, own_bias = (
                    torch.zeros(part.shape, dtype=dtype, device=device).masked_fill_(~part, float("-inf"))
                    for part in seen
                )
                biases[layer] = context_bias, own_bias
            x = self._layer(x, context, weights, f"layers.{index}.", angles, biases[layer], slots)
        return self._norm(x, weights["norm.weight"]).view(batch, count, slots, width)

    @property
    def candidates(self) -> int:
        """How many of a slot's best tokens are scored once more, after the token before; 0 without that."""
        if self.spec.selector is not None:
            return self.spec.selector.top_k
        return 0 if self.spec.markov is None else CANDIDATES

    def pull(self, hidden: Tensor, before: Tensor, ids: Tensor) -> Tensor:
        """What the token before a slot adds to the logits of its candidates: see `selector_walk` for a
        selector, `markov_walk` for a Markov head.

        Args:
            hidden: [N, D], of the slots. before: [N] int64, the tokens before them. ids: [N, K] int64.

        Returns:
            [N, K] float32.
        """
        if self.spec.markov is not None:
            asked = F.embedding(before, self.parameter(FROM))
            offered = F.embedding(ids, self.parameter(INTO))
        else:
            projected = hidden.float() @ self.parameter(f"{SELECTOR}hidden_projection.weight").t()
            asked = F.embedding(before, self.parameter(f"{SELECTOR}predecessor_codebook")) * projected
            offered = F.embedding(ids, self.parameter(f"{SELECTOR}successor_codebook"))
        return (offered @ asked[..., None])[..., 0]

    def _layer(
        self,
        x: Tensor,
        context: Tensor,
        weights: Mapping[str, Tensor],
        name: str,
        angles: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
        biases: tuple[Tensor, Tensor],
        slots: int,
    ) -> Tensor:
        spec = self.spec
        h = self._norm(x, weights[f"{name}input_layernorm.weight"])
        kernel = None
        if spec.conv:
            h, kernel = self._before(h, weights, f"{name}attention_conv.", slots)
        q = self._heads(h, weights, name, "q", angles[1])
        v_weight = weights[f"{name}self_attn.v_proj.weight"]
        keys, values = (
            (self._heads(each, weights, name, "k", turned), _split(F.linear(each, v_weight), spec))
            for each, turned in ((context, angles[0]), (h, angles[1]))
        )
        out = attend(q, keys, values, biases)
        out = F.linear(out.transpose(1, 2).flatten(2), weights[f"{name}self_attn.o_proj.weight"])
        if kernel is not None:
            out = self._after(out, kernel, weights, f"{name}attention_conv.", slots)
        x = x + out
        h = self._norm(x, weights[f"{name}post_attention_layernorm.weight"])
        if spec.conv:
            h, kernel = self._before(h, weights, f"{name}mlp_conv.", slots)
        gate = ACTIVATIONS[spec.hidden_act](F.linear(h, weights[f"{name}mlp.gate_proj.weight"]))
        inner = gate * F.linear(h, weights[f"{name}mlp.up_proj.weight"])
        out = F.linear(inner, weights[f"{name}mlp.down_proj.weight"])
        if kernel is not None:
            out = self._after(out, kernel, weights, f"{name}mlp_conv.", slots)
        return x + out

    def _heads(
        self, x: Tensor, weights: Mapping[str, Tensor], name: str, kind: str, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[B, n, D] to normed and rotated queries or keys [B, heads, n, d]."""
        x = _split(F.linear(x, weights[f"{name}self_attn.{kind}_proj.weight"]), self.spec)
        x = self._norm(x, weights[f"{name}self_attn.{kind}_norm.weight"])
        first, second = x.chunk(2, -1)
        cos, sin = angles
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[B, n] to cos, sin [B, 1, n, d / 2]."""
        cos, sin = rope_angles(positions, self.frequencies, self.rope_scale)
        return cos.to(dtype)[:, None], sin.to(dtype)[:, None]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.spec.rms_norm_eps)

    def _before(
        self, x: Tensor, weights: Mapping[str, Tensor], name: str, slots: int
    ) -> tuple[Tensor, Tensor]:
        """See `drafter.layers.DynamicConv`; every block for itself."""
        conv = self.spec.conv
        if conv is None:
            raise RuntimeError("a draft without convolutions")
        blocks = x.view(-1, slots, x.shape[-1])
        kernels = F.linear(blocks, weights[f"{name}kernel_projection.weight"])
        kernels = kernels.view(*blocks.shape[:2], 2, conv.kernel_size, -1)
        mixed = dynamic_conv(blocks, kernels[:, :, 0], weights[f"{name}base_kernel"][0])
        return mixed.view(x.shape), kernels[:, :, 1]

    def _after(
        self, x: Tensor, kernel: Tensor, weights: Mapping[str, Tensor], name: str, slots: int
    ) -> Tensor:
        blocks = x.view(-1, slots, x.shape[-1])
        return dynamic_conv(blocks, kernel, weights[f"{name}base_kernel"][1]).view(x.shape)


def see(anchors: Tensor, slots: int, length: int, window: int | None, causal: bool) -> tuple[Tensor, Tensor]:
    """What a block's slots see: the context strictly before the anchor, and their own block.

    Args:
        anchors: [B, A] int64 positions, -1 for padding, whose slots see their own block only.

    Returns:
        context: [B, A * S, length] bool. own: [S, S] bool, the same for every block.
    """
    batch = len(anchors)
    device = anchors.device
    offsets = torch.arange(slots, device=device)
    queries = (anchors[..., None] + offsets).view(batch, -1, 1)  # positions
    keys = torch.arange(length, device=device)
    context = keys < anchors.repeat_interleave(slots, 1)[..., None]
    distance = offsets[:, None] - offsets
    own = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        context = context & (queries - keys < window)
        own = own & (distance.abs() < window)
    return context, own


def attend(
    q: Tensor, context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor]
) -> Tensor:
    """Attention of A blocks of S slots to one context, and of each block to itself alone.

    As products of matrices, two a sequence and key head: no key is repeated for the query heads that share
    it, and no block is compared with the others.

    Args:
        q: [B, H, A * S, d].
        context: k, v [B, Hkv, T, d]. own: k, v [B, Hkv, A * S, d].
        biases: [B, A * S, T] and [S, S]; -inf for what is not seen.

    Returns:
        [B, H, A * S, d].
    """
    batch, heads, count, size = q.shape
    kv_heads, length, slots = context[0].shape[1], context[0].shape[2], len(biases[1])
    blocks, group = count // slots, heads // kv_heads
    q = (q * size**-0.5).view(batch, kv_heads, group, count, size)
    far = q.reshape(batch, kv_heads, group * count, size) @ context[0].transpose(2, 3)
    far = far.view(batch, kv_heads, group, count, length) + biases[0][:, None, None]
    apart = q.reshape(batch, kv_heads, group, blocks, slots, size).transpose(2, 3)
    apart = apart.reshape(batch, kv_heads, blocks, group * slots, size)
    k, v = (each.reshape(batch, kv_heads, blocks, slots, size) for each in own)
    near = (apart @ k.transpose(3, 4)).view(batch, kv_heads, blocks, group, slots, slots) + biases[1]
    near = near.transpose(2, 3).reshape(batch, kv_heads, group, count, slots)
    weights = torch.cat([far, near], -1).softmax(-1)
    far, near = weights.split([length, slots], -1)
    out = (far.reshape(batch, kv_heads, group * count, length) @ context[1]).view(batch, heads, count, size)
    near = near.view(batch, kv_heads, group, blocks, slots, slots).transpose(2, 3)
    beside = near.reshape(batch, kv_heads, blocks, group * slots, slots) @ v
    beside = beside.view(batch, kv_heads, blocks, group, slots, size).transpose(2, 3)
    attended: Tensor = out + beside.reshape(batch, heads, count, size)
    return attended


def _split(x: Tensor, spec: DraftSpec) -> Tensor:
    """[B, n, heads * d] to [B, heads, n, d]."""
    heads: Tensor = x.unflatten(-1, (-1, spec.head_dim))
    return heads.transpose(1, 2)


def _key(name: str) -> str:
    return name.replace(".", "/")  # a ParameterDict takes no dots
