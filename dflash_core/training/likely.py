"""What the target thought likely after every token: its best tokens on disk, read through memory maps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dflash_core.rollback.base import RollbackPlan
from dflash_core.target import TargetModel, TargetOutput
from dflash_core.training.beside import (
    OnProgress,
    check_size,
    compute_beside,
    missing,
    path_beside,
    positions,
)
from dflash_core.training.data.store import shards
from dflash_core.tree import chain

TOP = 8
"""K, tokens that are kept of each distribution: beyond them is little to learn, and it takes room."""

BYTES = TOP * (4 + 2)
"""A position: int32 ids and float16 probabilities."""

ENDING = f"top{TOP}"

CHUNK = 256
"""Positions whose logits over the whole vocabulary exist at a time."""


@dataclass(frozen=True)
class Likely:
    """The most probable next tokens, over the whole vocabulary at temperature 1.

    Attributes:
        ids: [..., K] integers, best first; -1 for none.
        probs: [..., K] floats, 0 for none. They sum to less than 1: there are other tokens.
    """

    ids: Tensor
    probs: Tensor

    def __getitem__(self, which: slice | Tensor) -> "Likely":
        return Likely(self.ids[which], self.probs[which])

    def to(self, device: torch.device) -> "Likely":
        return Likely(self.ids.to(device), self.probs.to(device))

    def among(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of a loss over some tokens only, whose probabilities are made to sum to 1.

        Args:
            rows: [V + 1] int64, the row of each token, -1 for those that are not among them; the last for
                "none".

        Returns:
            labels: [..., K] int64 rows, or -1.
            shares: [..., K] float32, 0 where the label is -1; all 0 where none of the tokens is among them.
        """
        labels = rows[self.ids.long()]
        probs = self.probs.float().masked_fill(labels < 0, 0.0)
        return labels, probs / probs.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def size_of_likely(data: Path, folder: Path | None = None) -> int:
    """Bytes that a data set takes, before anything is computed; with a folder only those that it lacks."""
    return positions(shards(data) if folder is None else missing(data, folder, ENDING)) * BYTES


@torch.no_grad()
def compute_likely(
    target: TargetModel,
    data: Path,
    folder: Path,
    on_progress: OnProgress = lambda done, total: None,
) -> None:
    """Compute the files of the shards that have none yet; each appears complete or not at all.

    Args:
        data: a store of answers, which may have grown since.
        folder: where they go; for one target.
        on_progress: sequences done and in all.

    Raises:
        DFlashError: the folder belongs to another target, or the disk is full.
    """
    header: dict[str, object] = {"target": target.info.name, "dtype": str(target.info.dtype)}

    def best(content: Mapping[str, Tensor], one_more: Callable[[], None]) -> bytes:
        ends = content["offsets"].tolist()
        ids = torch.full((ends[-1], TOP), -1, dtype=torch.int32)
        probs = torch.zeros(ends[-1], TOP, dtype=torch.float16)
        for start, end in pairwise(ends):
            place = slice(start, end)
            _run(target, content["tokens"][place], content["loss"][place], Likely(ids[place], probs[place]))
            one_more()
        return ids.numpy().tobytes() + probs.numpy().tobytes()

    compute_beside(data, folder, ENDING, ENDING, header, best, on_progress)


def read_likely(folder: Path, shard: Path, total: int) -> Likely | None:
    """[total, K] of a shard, mapped into memory; `None` where nothing was computed.

    Raises:
        DFlashError: the file does not fit the shard.
    """
    path = path_beside(folder, shard, ENDING)
    if not path.exists():
        return None
    check_size(path, shard, total * BYTES)
    ids = np.memmap(path, np.int32, "c", 0, (total, TOP))
    probs = np.memmap(path, np.float16, "c", ids.nbytes, (total, TOP))
    return Likely(torch.from_numpy(ids), torch.from_numpy(probs))


def _run(target: TargetModel, tokens: Tensor, loss: Tensor, into: Likely) -> None:
    """Fill in one sequence, from the token before the first that is the target's own to the last but one.

    A prefill gives the logits of its last token only, so what follows is run as if it were being verified.
    """
    own = loss[1:].nonzero()[:, 0]
    if not len(own):
        return
    place, end = int(own[0]), len(tokens) - 1
    state = target.start(())
    _keep_best(state.prefill(tokens[: place + 1].tolist()), into[place : place + 1])
    for begin in range(place + 1, end, CHUNK):
        piece = tokens[None, begin : min(begin + CHUNK, end)].long().to(target.info.device)
        count = piece.shape[1]
        tree = chain(piece, torch.tensor([count], device=piece.device))
        _keep_best(state.verify(tree), into[begin : begin + count])
        state.commit(RollbackPlan([count]))


def _keep_best(output: TargetOutput, into: Likely) -> None:
    """Logits [1, n, V] -> what is likely [n, K]."""
    logits = output.logits[0].float()
    best = logits.topk(min(TOP, logits.shape[-1]))
    count = best.indices.shape[-1]
    into.ids[:, :count] = best.indices
    into.probs[:, :count] = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
