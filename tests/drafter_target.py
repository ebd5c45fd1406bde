"""A target of an embedding and a head only, and plans, for tests of drafters."""

import torch
from torch import Tensor

from dflash_core.schedule.base import CyclePlan
from dflash_core.spec import DraftSpec
from dflash_core.target import TargetInfo


class StubTarget:
    """Lends random embeddings and a random head of the draft's width."""

    def __init__(self, spec: DraftSpec, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(seed)
        width = spec.target_hidden_size or spec.hidden_size
        shape = (spec.vocab_size, width)
        self.embedding = torch.randn(shape, generator=generator).to(dtype)
        self.head_weight = (torch.randn(shape, generator=generator) / width**0.5).to(dtype)
        self.info = TargetInfo(
            name="stub",
            num_layers=spec.num_target_layers or 8,
            hidden_size=width,
            vocab_size=spec.vocab_size,
            max_positions=4096,
            rope=None,
            recurrent=False,
            trees=True,
            eos_token_ids=(),
            device=torch.device("cpu"),
            dtype=dtype,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head_weight.T


def plan(
    blocks: list[int], lengths: list[int] | None = None, trees: list[int | None] | None = None
) -> CyclePlan:
    """Verify whole blocks, unless lengths are given; chains, unless tree budgets are."""
    count = len(blocks)
    return CyclePlan(tuple(blocks), tuple(lengths or blocks), tuple(trees or [None] * count), (None,) * count)
