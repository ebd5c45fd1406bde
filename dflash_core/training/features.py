"""The target's hidden states of the training sequences: on disk in 16 bit, read through memory maps."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from dflash_core.errors import DFlashError
from dflash_core.target import TargetModel
from dflash_core.training.data.store import shards, write_whole

BYTES = 2


@dataclass(frozen=True)
class Shard:
    """One shard of sequences with their features.

    Attributes:
        tokens, loss: [total] int32 and bool. offsets: [n + 1] int64.
        features: [total, P * D] bfloat16, mapped from disk.
    """

    tokens: Tensor
    loss: Tensor
    offsets: Tensor
    features: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1


def size_of(data: Path, width: int) -> int:
    """Bytes that the features of a data set take, before any is computed.

    Args:
        width: P * D of the target.
    """
    return sum(int(load_file(shard)["offsets"][-1]) for shard in shards(data)) * width * BYTES


def compute_features(
    target: TargetModel,
    taps: Sequence[int],
    data: Path,
    folder: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
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
    _claim(folder, header)
    todo = [shard for shard in shards(data) if not _path(folder, shard).exists()]
    loaded = {shard: load_file(shard) for shard in todo}
    total, done = sum(len(one["offsets"]) - 1 for one in loaded.values()), 0
    for shard, content in loaded.items():
        ends = content["offsets"].tolist()
        found = torch.empty(ends[-1], len(taps) * target.info.hidden_size, dtype=torch.bfloat16)
        for start, end in pairwise(ends):
            state = target.start(tuple(taps))
            hidden = state.prefill(content["tokens"][start:end].tolist()).taps
            if hidden is None:
                raise DFlashError(
                    f"{target.info.name} gives no hidden states, so nothing can be learnt from it."
                )
            found[start:end] = hidden[0]
            done += 1
            on_progress(done, total)
        try:
            write_whole(_path(folder, shard), found.view(torch.uint8).numpy().tobytes())
        except OSError as error:
            raise DFlashError(
                f"{folder} cannot be written: {error}. What is there already stays good."
            ) from None


def read_shards(data: Path, folder: Path, width: int) -> list[Shard]:
    """All shards that have features, mapped into memory.

    Raises:
        DFlashError: a file does not fit its shard.
    """
    found = []
    for shard in shards(data):
        path = _path(folder, shard)
        if not path.exists():
            continue
        content = load_file(shard)
        total = int(content["offsets"][-1])
        if path.stat().st_size != total * width * BYTES:
            raise DFlashError(f"{path} does not fit {shard}; delete it to have it computed again.")
        mapped = np.memmap(path, dtype=np.int16, mode="c", shape=(total, width))
        features = torch.from_numpy(mapped).view(torch.bfloat16)
        found.append(Shard(content["tokens"], content["loss"].bool(), content["offsets"], features))
    return found


def _path(folder: Path, shard: Path) -> Path:
    return folder / f"{shard.stem}.bf16"


def _claim(folder: Path, header: dict[str, object]) -> None:
    path = folder / "features.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(header).encode())
    elif json.loads(path.read_text()) != header:
        raise DFlashError(
            f"{path} was made of {path.read_text()}, not of {json.dumps(header)}; use another folder."
        )
