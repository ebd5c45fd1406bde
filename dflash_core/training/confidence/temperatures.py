"""Sequential temperature scaling: one temperature a slot, fitted from left to right."""

import torch
from torch import Tensor

from dflash_core.training.confidence.calibration import log_loss, survival
from dflash_core.training.confidence.observations import Observations

COLDEST, HOTTEST = 0.1, 10.0
STEPS = 97
"""Of the search on a logarithmic scale, 1 among them; as many again around the best of these."""

SPREAD = 0.35
"""Standard deviation that a temperature's logarithm is expected to have: deep slots survive so seldom that a
handful of blocks would decide about theirs."""

FEWEST = 50
"""Blocks of which a slot's temperature can be told; with fewer it keeps that of the slot before."""


def sequential_temperatures(logits: Tensor, observations: Observations) -> tuple[float, ...]:
    """Temperatures under which the survival products of blocks are most likely, 1 being likelier beforehand.

    What a schedule multiplies is not a slot's own probability but the product of all up to it, in which
    errors add up. So the first slot's temperature is fitted first, to how often the first draft is accepted;
    then, with that one held, the second's, to how often the first two are; and so on. If all of them together
    should be worse than none (which fitting them one by one does not rule out), none is applied.

    Args:
        logits: [N, D'] of each slot's own probability, of blocks that the head was not fitted to.

    Returns:
        D' numbers above 0.

    Source: DSpark (arXiv 2607.05147), which calibrates the same products in the same order. A temperature is
    chosen by likelihood here and not by a binned error, which a head that says less can have low as well.
    """
    slots = logits.shape[1]
    chosen = torch.ones(slots, dtype=torch.float64)
    before = torch.ones(len(logits), dtype=torch.float64)
    for slot in range(slots):
        rows = observations.looked_at[:, slot]
        if int(rows.sum()) < FEWEST:
            chosen[slot:] = chosen[slot - 1] if slot else 1.0
            break
        happened = observations.survived[rows, slot]
        chosen[slot] = _best(logits[rows, slot].double(), before[rows], happened)
        before = before * (logits[:, slot].double() / chosen[slot]).sigmoid()
    none = torch.ones_like(chosen)
    return tuple(
        (
            chosen if _loss(logits, chosen, observations) <= _loss(logits, none, observations) else none
        ).tolist()
    )


def survival_loss(logits: Tensor, temperatures: tuple[float, ...], observations: Observations) -> float:
    """Mean negative log-likelihood of "accepted up to here", over all slots that were verified."""
    return _loss(logits, torch.tensor(temperatures, dtype=torch.float64), observations)


def _loss(logits: Tensor, temperatures: Tensor, observations: Observations) -> float:
    looked = observations.looked_at
    return log_loss(survival(logits, temperatures)[looked], observations.survived[looked])


def _best(logits: Tensor, before: Tensor, happened: Tensor) -> float:
    """The likeliest temperature of `before * sigmoid(logits / T)`; 1 where none is likelier."""
    low, high = torch.tensor(COLDEST).log().item(), torch.tensor(HOTTEST).log().item()
    weight = 1 / (2 * SPREAD**2 * len(logits))
    best, least = 0.0, log_loss(before * logits.sigmoid(), happened)
    for _ in range(2):
        for point in torch.linspace(low, high, STEPS, dtype=torch.float64).tolist():
            scaled = logits / torch.tensor(point, dtype=torch.float64).exp()
            loss = log_loss(before * scaled.sigmoid(), happened) + weight * point**2
            if loss < least:
                best, least = point, loss
        step = (high - low) / (STEPS - 1)
        low, high = best - step, best + step
    return float(torch.tensor(best, dtype=torch.float64).exp())
