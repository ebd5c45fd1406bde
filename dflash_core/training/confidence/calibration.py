"""How far stated probabilities are from what happened."""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15
"""Of equal width, the usual number (Guo et al. 2017)."""

TINY = 1e-6
"""Closest that a probability is taken to 0 or 1 when its logarithm is."""


@dataclass(frozen=True)
class Bin:
    """Events whose stated probability lies in [low, high).

    Attributes:
        confidence: their mean stated probability. frequency: how many of them happened, as a share.
    """

    low: float
    high: float
    count: int
    confidence: float
    frequency: float


@dataclass(frozen=True)
class Reliability:
    """Stated probabilities against what happened.

    Attributes:
        ece: expected calibration error, the mean of |confidence - frequency| weighted by count.
        nll: mean negative log-likelihood in nats an event.
        brier: mean squared difference.
        bins: those that have events.
    """

    count: int
    ece: float
    nll: float
    brier: float
    bins: tuple[Bin, ...]


def reliability(stated: Tensor, happened: Tensor, bins: int = BINS) -> Reliability:
    """Compare probabilities [M] with events [M] (0 or 1)."""
    stated, happened = stated.double(), happened.double()
    which = (stated * bins).long().clamp(0, bins - 1)
    found = []
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        if count:
            mean, share = float(stated[inside].mean()), float(happened[inside].mean())
            found.append(Bin(number / bins, (number + 1) / bins, count, mean, share))
    total = len(stated)
    ece = sum(one.count * abs(one.confidence - one.frequency) for one in found) / max(total, 1)
    return Reliability(
        total, ece, log_loss(stated, happened), float((stated - happened).square().mean()), tuple(found)
    )


def log_loss(stated: Tensor, happened: Tensor) -> float:
    """Mean negative log-likelihood in nats of events [M] under probabilities [M]."""
    safe = stated.double().clamp(TINY, 1 - TINY)
    happened = happened.double()
    return float(-(happened * safe.log() + (1 - happened) * (1 - safe).log()).mean())


def survival(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Probabilities [N, D'] that a slot and all before it are accepted, from logits [N, D'] of each slot."""
    return torch.nn.functional.logsigmoid(logits.double() / temperatures.double()).cumsum(-1).exp()
