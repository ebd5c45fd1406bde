"""What became of drafted blocks: the hidden state of each slot, and how many drafts the target kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Observations:
    """N blocks of D' drafted slots.

    Attributes:
        hidden: [N, D', D] float16 or wider, after the draft's final norm; anything beyond `verified`.
        log_probs: [N, D'] float32, the draft's log-probability of each slot's token.
        accepted: [N] int64, drafts that the target kept, 0 to `verified`.
        verified: [N] int64, drafts that it looked at, 1 to D'.
        groups: [N] int64, the prompt that a block belongs to. Blocks of one prompt resemble each other, so
            they are kept together when a part is held out.
    """

    hidden: Tensor
    log_probs: Tensor
    accepted: Tensor
    verified: Tensor
    groups: Tensor

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def slots(self) -> Tensor:
        """[D'] int64: 0, 1, ..."""
        return torch.arange(self.hidden.shape[1])

    @property
    def reached(self) -> Tensor:
        """[N, D'] bool: verified, and everything before it was accepted."""
        return (self.slots < self.verified[:, None]) & (self.slots <= self.accepted[:, None])

    @property
    def looked_at(self) -> Tensor:
        """[N, D'] bool: verified, whatever became of the slots before."""
        return self.slots < self.verified[:, None]

    @property
    def survived(self) -> Tensor:
        """[N, D'] bool: this slot and everything before it was accepted."""
        return self.slots < self.accepted[:, None]

    def take(self, chosen: Tensor) -> "Observations":
        """The blocks of a mask [N] or of indices."""
        return Observations(
            self.hidden[chosen],
            self.log_probs[chosen],
            self.accepted[chosen],
            self.verified[chosen],
            self.groups[chosen],
        )


@dataclass(frozen=True)
class Parts:
    """Observations of different prompts: to fit, to choose and calibrate by, to report on."""

    train: Observations
    validation: Observations
    test: Observations


def split(observations: Observations, shares: Sequence[float], seed: int) -> Parts:
    """Prompts dealt out at random into three parts.

    Args:
        shares: of prompts, of the training and the validation part.
    """
    names = observations.groups.unique()
    order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    first = round(len(order) * shares[0])
    second = first + round(len(order) * shares[1])
    parts = (order[:first], order[first:second], order[second:])
    train, validation, test = (observations.take(torch.isin(observations.groups, part)) for part in parts)
    return Parts(train, validation, test)
