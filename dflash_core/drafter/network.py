"""The draft network: context features, context keys and values, and the forward over a block."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.drafter.attention import Block, ContextProjection, Rotary
from dflash_core.drafter.context import ContextZone
from dflash_core.drafter.layers import DraftLayer
from dflash_core.drafter.rotary import inverse_frequencies
from dflash_core.drafter.weights import RMSNorm, Weights, linear


class DraftNetwork(nn.Module):
    """DFlash v1, DFlash2 and DSpark without embedding and heads. It holds weights, no state of any request.

    Every matrix product is an `nn.Linear` attribute of this module or of one below it.

    Raises:
        CheckpointError: a tensor that the spec calls for is missing.
        UnsupportedError: the spec asks for something that this network does not do.
    """

    def __init__(
        self,
        checkpoint: DraftCheckpoint,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        spec = checkpoint.spec
        weights = Weights(checkpoint, dtype, torch.device(device))
        self.spec = spec
        self.fc = linear(weights("fc.weight"))
        self.hidden_norm = RMSNorm(weights("hidden_norm.weight"), spec.rms_norm_eps)
        frequencies, scale = inverse_frequencies(spec.rope, spec.head_dim)
        self.rotary = Rotary(frequencies.to(device), scale)
        self.context = ContextProjection(spec, weights)
        self.layers = nn.ModuleList(
            DraftLayer(spec, weights, self.context, index) for index in range(spec.num_layers)
        )
        self.norm = RMSNorm(weights("norm.weight"), spec.rms_norm_eps)

    @property
    def dtype(self) -> torch.dtype:
        return self.hidden_norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.hidden_norm.weight.device

    def context_features(self, taps: Tensor) -> Tensor:
        """Taps [M, P * D of the target] to context features [M, D]."""
        features: Tensor = self.hidden_norm(self.fc(taps.to(self.dtype)))
        return features

    def context_kv(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What the features [M, D] of committed positions [M] are in the pool.

        Returns:
            k, v: [L, M, Hkv, d]; keys are normed and rotated.
        """
        k, v = self.context(features, *self.rotary(positions))
        return k, v

    def forward(
        self,
        embeddings: Tensor,
        positions: Tensor,
        zones: Sequence[ContextZone],
        block_lengths: Tensor | None = None,
        outputs: int | None = None,
    ) -> Tensor:
        """One parallel pass over the blocks of B rows.

        Args:
            embeddings: [B, S, D] raw input embeddings of [anchor, MASK, ..., MASK].
            positions: [B, S] int64; slot s is at the anchor's position + s.
            zones: the context; together they name every layer once.
            block_lengths: [B] int64, slots a row, 1 to S; `None` when all rows have S. Slots past it are
                seen by no other slot.
            outputs: how many leading slots are wanted; all when `None`.

        Returns:
            [B, outputs, D], after the final norm: what the head takes.
        """
        context = {
            layer: (zone.k[row], zone.v[row], zone.view)
            for zone in zones
            for row, layer in enumerate(zone.layers)
        }
        slots = embeddings.shape[1]
        outputs = slots if outputs is None else outputs
        block = Block(positions, block_lengths, *self.rotary(positions))
        x = embeddings.to(self.dtype)
        if self.spec.input_embedding_scale != 1:
            x = x * self.spec.input_embedding_scale
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x, block, *context[index], outputs if index == last else slots)
        hidden: Tensor = self.norm(x)
        return hidden
