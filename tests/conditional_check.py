"""Whether tokens follow the distributions of their contexts: one chi-square over many contexts.

It complements `distribution_check`, which needs the whole joint distribution and so a small vocabulary.
"""

from collections.abc import Callable

import torch
from distribution_check import SMALLEST_BIN
from torch import Tensor

Context = tuple[int, ...]


def conditional_p(samples: Tensor, probs_after: Callable[[Context], Tensor]) -> float:
    """p-value of the last token of each sample, given the tokens before it.

    Pearson's statistic is summed over contexts. Within a context, bins with an expected count below
    `SMALLEST_BIN` are pooled. Contexts too rare for two bins are pooled themselves, by rank: how often the
    likeliest token came, the second likeliest, ..., against the sums of their expectations. (Given the
    contexts, such a sum varies less than a multinomial, so this can only make false alarms rarer.) So every
    sample counts.

    Args:
        samples: [n, d] int64, d - 1 tokens of context and the token after them.
        probs_after: the exact distribution [V] after a context.

    Returns:
        The probability of a statistic at least this large if the samples are what they should be; 0 where a
        token was sampled that has probability 0.
    """
    followers: dict[Context, list[int]] = {}
    for *context, token in samples.tolist():
        followers.setdefault(tuple(context), []).append(token)
    statistic, freedom = 0.0, 0
    rare_counts, rare_expected = torch.zeros(()), torch.zeros(())
    for context, tokens in followers.items():
        probs, ranked = probs_after(context).double().sort(descending=True)
        counts = torch.bincount(torch.tensor(tokens), minlength=len(probs))[ranked].double()
        if bool((counts[probs == 0] > 0).any()):
            return 0.0
        expected = probs * counts.sum()
        distance, bins = pearson(counts, expected)
        if bins > 1:
            statistic, freedom = statistic + distance, freedom + bins - 1
        else:
            rare_counts, rare_expected = rare_counts + counts, rare_expected + expected
    if rare_counts.dim():
        distance, bins = pearson(rare_counts, rare_expected)
        statistic, freedom = statistic + distance, freedom + bins - 1
    if freedom == 0:
        return 1.0
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


def pearson(counts: Tensor, expected: Tensor) -> tuple[float, int]:
    """Pearson's statistic and its number of bins; small ones are pooled, with the next larger if needed.

    Args:
        expected: in descending order.
    """
    large = int((expected >= SMALLEST_BIN).sum())
    if float(expected[large:].sum()) < SMALLEST_BIN:
        large = max(large - 1, 0)
    counts = torch.cat([counts[:large], counts[large:].sum()[None]])
    expected = torch.cat([expected[:large], expected[large:].sum()[None]])
    return float(((counts - expected) ** 2 / expected).sum()), large + 1
