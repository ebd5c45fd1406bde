"""What a run takes from the target before the first step."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dflash_core.drafter.heads import copy_rows
from dflash_core.spec import DraftSpec
from dflash_core.target import TargetModel
from dflash_core.training.data.store import Sequences
from dflash_core.training.start import learnt_successors, target_tensors

SAMPLES = 8
"""Texts on which the sizes of the target's queries and keys are measured."""


@dataclass(frozen=True)
class Ground:
    """With it the target is no longer needed. Tensors are on the CPU.

    Attributes:
        target: its name.
        weights: float32, where training begins.
        embedding, head: [V, D].
    """

    target: str
    spec: DraftSpec
    weights: dict[str, Tensor]
    embedding: Tensor
    head: Tensor


def take_ground(
    target: TargetModel, spec: DraftSpec, answers: Sequences, given: Mapping[str, Tensor] | None, seed: int
) -> Ground:
    """
    Args:
        answers: what the draft is to learn from.
        given: where training begins; with the target's last layers when `None`.

    Raises:
        UnsupportedError: the target's layers cannot be those of the draft.
    """
    if given is None:
        ends = answers.offsets[: SAMPLES + 1].tolist()
        samples = [answers.tokens[a:b].tolist() for a, b in pairwise(ends)]
        given = target_tensors(spec, target, samples, seed)
    info = target.info
    every = torch.arange(info.vocab_size, device=info.device)
    embedding = target.embed(every).detach()
    # Read out through the head itself.
    head = copy_rows(target.head, every, info.hidden_size, info.dtype, info.device).weight.detach()
    weights = {name: weight.cpu() for name, weight in learnt_successors(given, head).items()}
    return Ground(info.name, spec, weights, embedding.cpu(), head.cpu())
