"""What a training step sees: which sequences, which anchors. All of it follows from seed and step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.errors import DFlashError
from dflash_core.training.features import Shard
from dflash_core.training.likely import Likely

BUCKET = 32
"""Batches among which sequences are sorted by length, so that little is padded."""

HELD_OUT = 64
"""Every so many-th sequence is kept out of training."""

ROWS = 1 << 20
"""More than a batch has."""

MULTIPLE = 32
"""Sequences are padded to a multiple of this, so that few shapes occur."""


@dataclass(frozen=True)
class Batch:
    """Padded sequences with their anchors.

    Attributes:
        taps: [B, T, P * D] bfloat16.
        anchors: [B, A] int64 positions, -1 for padding.
        anchor_tokens: [B, A] int64.
        labels: [B, A, S - 1] int64 token ids after each anchor; -1 where there is nothing to learn.
        likely: [B, A, S - 1, K], what the target thought likely in the place of each label; `None` when the
            shards do not say.
    """

    taps: Tensor
    anchors: Tensor
    anchor_tokens: Tensor
    labels: Tensor
    likely: Likely | None = None

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.taps.to(device),
            self.anchors.to(device),
            self.anchor_tokens.to(device),
            self.labels.to(device),
            None if self.likely is None else self.likely.to(device),
        )


@dataclass(frozen=True)
class Corpus:
    """Shards, and which sequences of them are trained on.

    Attributes:
        training, held_out: (shard, sequence) pairs.
    """

    shards: Sequence[Shard]
    training: Sequence[tuple[int, int]]
    held_out: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> "Corpus":
        everything = [(i, j) for i, shard in enumerate(shards) for j in range(len(shard))]
        return cls(
            shards,
            [one for place, one in enumerate(everything) if place % HELD_OUT],
            [one for place, one in enumerate(everything) if place % HELD_OUT == 0],
        )

    def length(self, one: tuple[int, int]) -> int:
        offsets = self.shards[one[0]].offsets
        return int(offsets[one[1] + 1] - offsets[one[1]])


def check_enough(sequences: int, batch: int) -> None:
    """Raises DFlashError for so few sequences that those to be trained on are no batch."""
    training = sequences - -(-sequences // HELD_OUT)
    if training < batch:
        raise DFlashError(
            f"There are {training} training sequences, fewer than a batch ({batch}); make more answers or "
            "smaller batches."
        )


def epoch(corpus: Corpus, size: int, seed: int, number: int) -> list[list[tuple[int, int]]]:
    """The batches of one epoch: every training sequence once, in an order of its own."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    order = torch.randperm(len(corpus.training), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), size * BUCKET):
        bucket = sorted((corpus.training[i] for i in order[start : start + size * BUCKET]), key=corpus.length)
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    full = [batch for batch in batches if len(batch) == size]
    return [full[i] for i in torch.randperm(len(full), generator=generator).tolist()]


def collate(
    corpus: Corpus,
    chosen: Sequence[tuple[int, int]],
    anchors: int,
    slots: int,
    seed: int,
    rows: range | None = None,
) -> Batch:
    """Sequences with random anchors: committed tokens whose next token is the target's own.

    Args:
        anchors: at most so many a sequence, none twice; no more are padded than the longest has tokens.
        slots: S, block size.
        rows: which of the sequences are wanted, all when `None`; they come as they would among all.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = range(len(chosen)) if rows is None else rows
    length = -(-max(map(corpus.length, chosen)) // MULTIPLE) * MULTIPLE
    anchors = min(anchors, length)
    first = corpus.shards[0]
    taps = torch.zeros(len(rows), length, first.features.shape[1], dtype=first.features.dtype)
    places = torch.full((len(rows), anchors), -1)
    starts = torch.zeros(len(rows), anchors, dtype=torch.int64)
    labels = torch.full((len(rows), anchors, slots - 1), -1)
    steps = torch.arange(1, slots)
    likely = None
    if first.likely is not None:
        shape = (*labels.shape, first.likely.ids.shape[-1])
        likely = Likely(torch.full(shape, -1, dtype=torch.int32), torch.zeros(shape, dtype=torch.float16))
    for place, (shard, index) in enumerate(chosen[: rows.stop]):
        part = corpus.shards[shard]
        begin, end = int(part.offsets[index]), int(part.offsets[index + 1])
        tokens, loss = part.tokens[begin:end].long(), part.loss[begin:end]
        possible = loss[1:].nonzero()[:, 0]
        picked = possible[torch.randperm(len(possible), generator=generator)[:anchors]]
        if place not in rows:
            continue
        row = place - rows.start
        taps[row, : end - begin] = part.features[begin:end]
        places[row, : len(picked)] = picked
        starts[row, : len(picked)] = tokens[picked]
        ahead = picked[:, None] + steps
        inside = ahead < len(tokens)
        ahead = ahead.clamp(max=len(tokens) - 1)
        labels[row, : len(picked)] = torch.where(inside & loss[ahead], tokens[ahead], -1)
        if likely is not None and part.likely is not None:
            # What stands in a place was chosen after the token before it.
            found = part.likely[begin:end][ahead - 1]
            likely.ids[row, : len(picked)], likely.probs[row, : len(picked)] = found.ids, found.probs
    return Batch(taps, places, starts, labels, likely)


def noise(taps: Tensor, rows: range, spread: float, seed: int) -> Tensor:
    """[B, T, P * D] normal noise on the hidden states of rows of a batch, the same whoever computes them.

    Args:
        taps: of these rows. spread: standard deviation in root mean squares of a position's hidden states.
    """
    found = torch.empty(taps.shape)
    for row, place in zip(found, rows, strict=True):
        row.normal_(generator=torch.Generator().manual_seed(seed * ROWS + place))
    size = taps.float().square().mean(-1, keepdim=True).sqrt() * spread
    return (found * size).to(taps.dtype)
