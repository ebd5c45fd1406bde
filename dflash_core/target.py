"""What the cycle needs from a model that it drives itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from dflash_core.rollback.base import RollbackPlan
from dflash_core.spec import RopeSpec
from dflash_core.tree import TokenTree

Recording = Literal["none", "replay", "checkpoint"]
"""What a verifying forward keeps of recurrent layers, so that a rollback is possible."""


@dataclass(frozen=True)
class TargetInfo:
    """Facts about a loaded target.

    Attributes:
        name: path or id, for messages.
        hidden_size: width of the residual stream, so of a tap and of an embedding.
        rope: rotary embedding of the full-attention layers; `None` when there is none or an unknown one.
        recurrent: has layers whose state is not a KV cache (GDN, Mamba, ...).
        trees: can verify trees (an attention mask of our own reaches every layer).
        eos_token_ids: tokens that end a generation by default.
    """

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    rope: RopeSpec | None
    recurrent: bool
    trees: bool
    eos_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class TargetOutput:
    """One forward over B requests and N new tokens each.

    Attributes:
        logits: [B, N, V] in the target's dtype; after `prefill` [1, 1, V], the last prompt token's.
        taps: [B, N, P * D], the tapped layers' outputs side by side in the order of the taps given;
            `None` when no taps were asked for.
    """

    logits: Tensor
    taps: Tensor | None


class TargetState(Protocol):
    """KV cache (and recurrent state) of the requests that are decoded together; row b is request b."""

    @property
    def lengths(self) -> Sequence[int]:
        """Committed positions a row, the anchor not among them."""
        ...

    def prefill(self, prompt: Sequence[int]) -> TargetOutput:
        """Append a row and run its prompt; its logits do not depend on the other rows."""
        ...

    def verify(self, tree: TokenTree, recording: Recording = "none") -> TargetOutput:
        """Run all nodes of all rows. Node j of row b uses cache slot `lengths[b] + j` and position
        `lengths[b] + depth`. Nothing counts as committed until `commit`."""
        ...

    def commit(self, plan: RollbackPlan) -> None:
        """Keep what the plan names of the last `verify`; the rest is gone."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order: new row i is old row `rows[i]`. The others are released."""
        ...


class TargetModel(Protocol):
    """A target that the decoder drives."""

    @property
    def info(self) -> TargetInfo: ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Raw input embeddings [..., D] of tokens [...], without a scale that the target's forward adds."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Raw LM head: logits [..., V] of final-normed hidden states [..., D], without softcap or scale."""
        ...

    def start(self, taps: Sequence[int]) -> TargetState:
        """An empty state whose forwards return these taps (0-based block indices; empty for none)."""
        ...
