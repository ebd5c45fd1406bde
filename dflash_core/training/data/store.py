"""Answers on disk: shards of token ids, each written whole or not at all."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dflash_core.errors import DFlashError

FORMAT = 1


@dataclass(frozen=True)
class Answer:
    """A prompt and what the target said to it.

    Attributes:
        prompt, tokens: token ids.
        record: provenance; at least `id` (the prompt's) and `source`.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Sequences:
    """All sequences of a store, end to end.

    Attributes:
        tokens: [total] int32.
        loss: [total] bool, what the target said itself.
        offsets: [n + 1] int64; sequence i is `tokens[offsets[i]:offsets[i + 1]]`.
    """

    tokens: Tensor
    loss: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1


class AnswerStore:
    """A folder of `dataset.json` and, per shard, `shard-00000.safetensors` and `shard-00000.jsonl`.

    A shard counts once its safetensors file is there, which is the last thing to be written.
    """

    def __init__(self, folder: Path, made_by: Mapping[str, Any]) -> None:
        """Open or begin a store.

        Args:
            made_by: what decides the answers (target, sampling, ...); the same for the whole store.

        Raises:
            DFlashError: the store was begun with other settings, or the folder cannot be written to.
        """
        self.folder = folder
        header = {"format": FORMAT, **made_by}
        path = folder / "dataset.json"
        if path.exists():
            known = json.loads(path.read_text())
            different = sorted(name for name in {*known, *header} if known.get(name) != header.get(name))
            if different:
                name = different[0]
                raise DFlashError(
                    f"{path} was begun with {name} = {known.get(name)!r}, not {header.get(name)!r}. "
                    "Go on with the same settings, or begin another folder."
                )
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(header, indent=1).encode())
        except OSError as error:
            raise DFlashError(f"{folder} cannot be written to: {error}.") from None

    def done(self) -> set[str]:
        """Ids of the prompts that have their answer."""
        return {record["id"] for shard in shards(self.folder) for record in records(shard)}

    def add(self, answers: Sequence[Answer]) -> None:
        """Write one more shard.

        Raises:
            DFlashError: it cannot be written; what was there before stays as it is.
        """
        tokens = [[*answer.prompt, *answer.tokens] for answer in answers]
        loss = [[False] * len(answer.prompt) + [True] * len(answer.tokens) for answer in answers]
        lengths = torch.tensor([0, *map(len, tokens)])
        data = {
            "tokens": torch.tensor([token for row in tokens for token in row], dtype=torch.int32),
            "loss": torch.tensor([flag for row in loss for flag in row], dtype=torch.uint8),
            "offsets": lengths.cumsum(0),
        }
        number = 1 + max((int(shard.stem.split("-")[1]) for shard in shards(self.folder)), default=-1)
        shard = self.folder / f"shard-{number:05}.safetensors"
        lines = "".join(json.dumps(dict(answer.record)) + "\n" for answer in answers)
        try:
            write_whole(shard.with_suffix(".jsonl"), lines.encode())
            write_whole(shard, save(data))
        except OSError as error:
            raise DFlashError(f"{shard} cannot be written: {error}. Earlier shards are safe.") from None


def read_sequences(folder: Path) -> Sequences:
    """Everything in a store.

    Raises:
        DFlashError: there is no store, or a shard is damaged; the message names it.
    """
    tokens, loss, lengths = [], [], []
    for shard in shards(folder):
        try:
            data = load_file(shard)
            ends = data["offsets"]
            if len(data["tokens"]) != len(data["loss"]) or int(ends[-1]) != len(data["tokens"]):
                raise ValueError("its tensors do not fit each other")
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise DFlashError(f"{shard} is damaged: {error}. Delete it to have it made again.") from None
        tokens.append(data["tokens"])
        loss.append(data["loss"].bool())
        lengths.append(ends.diff())
    if not tokens:
        raise DFlashError(f"{folder} has no answers; `dflash-core data` makes them.")
    zero = torch.zeros(1, dtype=torch.int64)
    return Sequences(torch.cat(tokens), torch.cat(loss), torch.cat([zero, torch.cat(lengths).cumsum(0)]))


def shards(folder: Path) -> list[Path]:
    """Shards that are complete, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def records(shard: Path) -> Iterator[dict[str, Any]]:
    """Provenance of a shard's answers, in order."""
    for line in shard.with_suffix(".jsonl").read_text().splitlines():
        yield json.loads(line)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there complete or not at all, even if the machine stops."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
