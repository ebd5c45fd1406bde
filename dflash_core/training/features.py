"""The target's hidden states of the training sequences: on disk in 16 bit, or computed whenever needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflash_core.errors import DFlashError
from dflash_core.target import TargetModel
from dflash_core.training.beside import (
    OnProgress,
    check_size,
    compute_beside,
    missing,
    path_beside,
    positions,
)
from dflash_core.training.data.store import read_shard, shards
from dflash_core.training.likely import Likely, read_likely

BYTES = 2
ENDING = "bf16"


class Features(Protocol):
    """[total, P * D] bfloat16, of which one whole sequence is asked for at a time."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def __getitem__(self, place: slice) -> Tensor: ...


@dataclass(frozen=True)
class OnTheFly:
    """Features that take no disk, and a forward of the target whenever they are asked for.

    Attributes:
        tokens: [total] of the shard.
    """

    target: TargetModel
    taps: Sequence[int]
    tokens: Tensor
    dtype: torch.dtype = torch.bfloat16

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.tokens), len(self.taps) * self.target.info.hidden_size

    def __getitem__(self, place: slice) -> Tensor:
        return hidden_states(self.target, self.taps, self.tokens[place])


@dataclass(frozen=True)
class Shard:
    """One shard of sequences with their features.

    Attributes:
        tokens, loss: [total] int32 and bool. offsets: [n + 1] int64.
        features: [total, P * D] bfloat16, mapped from disk or computed on the fly.
        likely: [total, K], what the target thought likely after each token, mapped from disk; `None` when it
            was not asked for.
    """

    tokens: Tensor
    loss: Tensor
    offsets: Tensor
    features: Features
    likely: Likely | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1


def hidden_states(target: TargetModel, taps: Sequence[int], tokens: Tensor) -> Tensor:
    """[T, P * D] bfloat16 of one sequence [T], on the target's device.

    Raises:
        DFlashError: the target gives none.
    """
    hidden = target.start(tuple(taps)).prefill(tokens.tolist()).taps
    if hidden is None:
        raise DFlashError(f"{target.info.name} gives no hidden states, so nothing can be learnt from it.")
    return hidden[0].to(torch.bfloat16)


def size_of(data: Path, width: int, folder: Path | None = None) -> int:
    """Bytes that the features of a data set take, before any is computed.

    Args:
        width: P * D of the target.
        folder: count only what it lacks.
    """
    some = shards(data) if folder is None else missing(data, folder, ENDING)
    return positions(some) * width * BYTES


def compute_features(
    target: TargetModel,
    taps: Sequence[int],
    data: Path,
    folder: Path,
    on_progress: OnProgress = lambda done, total: None,
) -> None:
    """Compute the features of the shards that have none yet; each appears complete or not at all.

    Args:
        data: a store of answers, which may have grown since.
        folder: where the features go; for one target and one choice of taps.
        on_progress: sequences done and in all.

    Raises:
        DFlashError: the folder belongs to another target or other taps, or the disk is full.
    """
    header: dict[str, object] = {
        "target": target.info.name,
        "dtype": str(target.info.dtype),
        "taps": list(taps),
    }

    def of_shard(content: Mapping[str, Tensor], one_more: Callable[[], None]) -> bytes:
        ends = content["offsets"].tolist()
        found = torch.empty(ends[-1], len(taps) * target.info.hidden_size, dtype=torch.bfloat16)
        for start, end in pairwise(ends):
            found[start:end] = hidden_states(target, taps, content["tokens"][start:end])
            one_more()
        return found.view(torch.uint8).numpy().tobytes()

    compute_beside(data, folder, "features", ENDING, header, of_shard, on_progress)


def read_shards(data: Path, folder: Path, width: int, with_likely: bool = False) -> list[Shard]:
    """All shards that have features, mapped into memory.

    Args:
        with_likely: read what the target thought likely as well, and leave out shards that lack it.

    Raises:
        DFlashError: a file does not fit its shard.
    """
    found = []
    for shard in shards(data):
        path = path_beside(folder, shard, ENDING)
        if not path.exists():
            continue
        content = read_shard(shard)
        total = int(content["offsets"][-1])
        check_size(path, shard, total * width * BYTES)
        mapped = np.memmap(path, dtype=np.int16, mode="c", shape=(total, width))
        features = torch.from_numpy(mapped).view(torch.bfloat16)
        likely = read_likely(folder, shard, total) if with_likely else None
        if with_likely and likely is None:
            continue
        found.append(Shard(content["tokens"], content["loss"].bool(), content["offsets"], features, likely))
    return found


def shards_on_the_fly(data: Path, target: TargetModel, taps: Sequence[int]) -> list[Shard]:
    """All shards, with features that are computed whenever they are asked for."""
    found = []
    for content in map(read_shard, shards(data)):
        tokens = content["tokens"]
        features = OnTheFly(target, taps, tokens)
        found.append(Shard(tokens, content["loss"].bool(), content["offsets"], features))
    return found
