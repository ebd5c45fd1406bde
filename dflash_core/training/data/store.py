"""Answers on disk: shards of token ids, each written whole or not at all."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dflash_core.errors import DFlashError
from dflash_core.training.folder import alone, write_whole

FORMAT = 1
HEADER = "dataset.json"
LEFT_OUT = "left-out.jsonl"
COMPARED = "compared.json"


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


@dataclass(frozen=True)
class Contents:
    """What a store holds.

    Attributes:
        answers: sequences.
        tokens: of the answers.
        prompt_tokens: of what they answer.
        left_out: prompts that have no answer, by reason.
    """

    shards: int
    answers: int
    tokens: int
    prompt_tokens: int
    left_out: Mapping[str, int]


class AnswerStore:
    """A folder of `dataset.json` and, per shard, `shard-00000.safetensors` and `shard-00000.jsonl`.

    A shard counts once its safetensors file is there, which is the last thing to be written. Beside them
    `left-out.jsonl` lists the prompts that were tried and get no answer, each with its reason, and
    `compared.json` says which sets of questions the prompts of all answers were compared with.
    """

    def __init__(self, folder: Path, made_by: Mapping[str, Any]) -> None:
        """Open a store, which the first answer or prompt left out begins.

        Args:
            made_by: what decides the answers (target, sampling, ...); the same for the whole store.

        Raises:
            DFlashError: the store was begun with other settings, its header is damaged, or the folder cannot
                be written to.
        """
        self.folder = folder
        self._header = {"format": FORMAT, **made_by}
        self._check()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DFlashError(f"{folder} cannot be written to: {error.strerror}.") from None

    def _check(self) -> bool:
        """Whether the header is there. One that nothing was begun with yet may still be another's.

        Raises:
            DFlashError: what the store holds was made with other settings, or nobody knows how.
        """
        path, complete = self.folder / HEADER, shards(self.folder)
        if not path.exists():
            if complete:
                raise DFlashError(
                    f"{self.folder} has shards and no {HEADER}, so nobody knows how they were made. "
                    "Begin another folder."
                )
            return False
        known, wanted = _begun_with(self.folder), self._header
        different = sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name))
        if different and (complete or (self.folder / LEFT_OUT).exists()):
            name = different[0]
            raise DFlashError(
                f"{path} was begun with {name} = {known.get(name)!r}, not {wanted.get(name)!r}. "
                "Go on with the same settings, or begin another folder."
            )
        return not different

    def _begin(self) -> None:
        """Write the header, just before there is something that it is about.

        A command that fails earlier, at its target say, may then be given again with other settings.
        """
        if not self._check():
            write_whole(self.folder / HEADER, json.dumps(self._header, indent=1).encode())

    def alone(self) -> AbstractContextManager[None]:
        """Within it no other process may be, so that no prompt is answered twice; see `alone`."""
        return alone(self.folder)

    def done(self) -> set[str]:
        """Ids of the prompts that have their answer, or that get none.

        Raises:
            DFlashError: the record of a shard is missing or damaged.
        """
        answered = {str(record["id"]) for shard in shards(self.folder) for record in records(shard)}
        return answered | left_out(self.folder).keys()

    def next_shard(self) -> int:
        """The number that the next shard gets."""
        return 1 + max((int(shard.stem.split("-")[1]) for shard in shards(self.folder)), default=-1)

    def holds(self, number: int) -> bool:
        """Whether the shard of this number is complete."""
        return self._shard(number).exists()

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
        shard = self._shard(self.next_shard())
        lines = "".join(json.dumps(dict(answer.record)) + "\n" for answer in answers)
        try:
            self._begin()
            write_whole(shard.with_suffix(".jsonl"), lines.encode())
            write_whole(shard, save(data))
        except OSError as error:
            raise DFlashError(
                f"{shard} cannot be written: {error.strerror}. Earlier shards are safe; make room and go on."
            ) from None

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Note prompts (by id) that get no answer, and why; they are not tried again.

        Raises:
            DFlashError: it cannot be written; what was there before stays as it is.
        """
        path = self.folder / LEFT_OUT
        lines = "".join(json.dumps({"id": id, "reason": why}) + "\n" for id, why in reasons.items())
        try:
            self._begin()
            before = path.read_bytes() if path.exists() else b""
            write_whole(path, before + lines.encode())
        except OSError as error:
            raise DFlashError(
                f"{path} cannot be written: {error.strerror}. Earlier shards are safe."
            ) from None

    def note_compared(
        self, prompts: Collection[str], overlaps: Mapping[str, int], missing: Mapping[str, str]
    ) -> None:
        """Keep what a run's prompts were compared with, as far as it holds for the prompts of all answers.

        An answer is to one of these prompts, or to one of an earlier run. Where none is to another, what an
        earlier run could not compare is made good.

        Args:
            prompts: ids of those that repeat no question.
            overlaps: how many others there were, by set.
            missing: sets that could not be read, and why.

        Raises:
            DFlashError: it cannot be written.
        """
        path = self.folder / COMPARED
        earlier = overlaps if self.done() <= set(prompts) else _compared(self.folder)
        both = {name: count for name, count in overlaps.items() if name in earlier}
        try:
            write_whole(
                path, json.dumps({"compared": both, "not_compared": dict(missing)}, indent=1).encode()
            )
        except OSError as error:
            raise DFlashError(f"{path} cannot be written: {error.strerror}.") from None

    def contents(self) -> Contents:
        """Counts of everything, from the shards' own tensors.

        Raises:
            DFlashError: a shard is damaged; the message names it.
        """
        there = shards(self.folder)
        answers = tokens = total = 0
        for shard in there:
            data = read_shard(shard)
            answers += len(data["offsets"]) - 1
            tokens += int(data["loss"].sum())
            total += len(data["tokens"])
        reasons = Counter(left_out(self.folder).values())
        return Contents(len(there), answers, tokens, total - tokens, dict(reasons))

    def _shard(self, number: int) -> Path:
        return self.folder / f"shard-{number:05}.safetensors"


def read_header(folder: Path) -> dict[str, Any]:
    """How the answers of a store were made: what it was begun with, and beside it as `compared` the sets of
    questions that the prompts of all of them were compared with, so that they repeat none.

    Raises:
        DFlashError: there is no header, or it is damaged.
    """
    return {**_begun_with(folder), "compared": sorted(_compared(folder))}


def _compared(folder: Path) -> Collection[str]:
    """Sets by the record, which claims nothing where it is damaged, or older answers have none."""
    try:
        return set(json.loads((folder / COMPARED).read_text(encoding="utf-8"))["compared"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _begun_with(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        empty = "" if shards(folder) else f", so {folder} has no answers; `dflash-core data` makes them"
        raise DFlashError(f"{path} cannot be read: {error.strerror}{empty}.") from None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DFlashError(
            f"{path} is damaged: it must be a JSON object. Restore it, or begin another folder."
        )
    return header


def read_sequences(folder: Path) -> Sequences:
    """Everything in a store.

    Raises:
        DFlashError: there is no store, or a shard is damaged; the message names it.
    """
    tokens, loss, lengths = [], [], []
    for shard in shards(folder):
        data = read_shard(shard)
        tokens.append(data["tokens"])
        loss.append(data["loss"].bool())
        lengths.append(data["offsets"].diff())
    if not tokens:
        raise DFlashError(f"{folder} has no answers; `dflash-core data` makes them.")
    zero = torch.zeros(1, dtype=torch.int64)
    return Sequences(torch.cat(tokens), torch.cat(loss), torch.cat([zero, torch.cat(lengths).cumsum(0)]))


def read_shard(shard: Path) -> dict[str, Tensor]:
    """The tensors of one shard.

    Raises:
        DFlashError: it is damaged.
    """
    try:
        data: dict[str, Tensor] = load_file(shard)
        if len(data["tokens"]) != len(data["loss"]) or int(data["offsets"][-1]) != len(data["tokens"]):
            raise ValueError("its tensors do not fit each other")
    except (SafetensorError, KeyError, ValueError, IndexError, OSError) as error:
        raise DFlashError(f"{shard} is damaged: {error}. Delete it to have it made again.") from None
    return data


def shards(folder: Path) -> list[Path]:
    """Shards that are complete, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def records(shard: Path) -> Iterator[dict[str, Any]]:
    """Provenance of a shard's answers, in order.

    Raises:
        DFlashError: it is missing or damaged.
    """
    path = shard.with_suffix(".jsonl")
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            record["id"]
            yield record
    except OSError as error:
        raise DFlashError(
            f"{path} cannot be read: {error.strerror}. Delete {shard.name} to have it made again."
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DFlashError(f"{path} is damaged. Delete {shard.name} to have it made again.") from None


def left_out(folder: Path) -> dict[str, str]:
    """Ids of prompts that get no answer, and why.

    Raises:
        DFlashError: the list is damaged.
    """
    path = folder / LEFT_OUT
    if not path.exists():
        return {}
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {str(entry["id"]): str(entry["reason"]) for entry in entries}
    except OSError as error:
        raise DFlashError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DFlashError(f"{path} is damaged. Delete it; its prompts are then tried once more.") from None
