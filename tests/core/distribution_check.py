"""Whether samples follow a distribution: Pearson's chi-square with small bins pooled.

Each check alarms falsely with probability `ALPHA`. Seeds are fixed, so a passing check passes again; the rate
matters when code changes what a seed gives. With fewer than 200 checks in the suite, one such change raises a
false alarm somewhere with a probability below 2e-4.
"""

import torch
from torch import Tensor

ALPHA = 1e-6
SMALLEST_BIN = 10.0


def chi_square_p(counts: Tensor, probs: Tensor) -> float:
    """Probability of a statistic at least this large when the counts are drawn from `probs`.

    Args:
        counts: [C] numbers of samples; at least 20,000 in all, or differences of a few percent go unseen.
        probs: [C] of the exact distribution, summing to 1.

    Bins with an expected count below `SMALLEST_BIN` are pooled into one. A sample in a bin of probability 0
    settles the matter: the answer is 0.
    """
    counts, probs = counts.double().flatten(), probs.double().flatten()
    assert counts.shape == probs.shape
    assert counts.sum() >= 20_000
    assert abs(float(probs.sum()) - 1) < 1e-6
    if bool((counts[probs == 0] > 0).any()):
        return 0.0
    expected = probs / probs.sum() * counts.sum()
    small = expected < SMALLEST_BIN
    counts = torch.cat([counts[~small], counts[small].sum()[None]])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(expected) == 1:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def assert_distributed(samples: Tensor, probs: Tensor, what: str) -> None:
    """Samples of one or of several tokens against their exact (joint) distribution.

    Args:
        samples: [n, d] int64 (or [n] for d = 1).
        probs: d axes, the exact joint distribution.
        what: names the check in its message.
    """
    samples = samples.reshape(len(samples), -1)
    steps = torch.tensor([*probs.shape[1:], 1]).flip(0).cumprod(0).flip(0)
    counts = torch.bincount((samples * steps).sum(-1), minlength=probs.numel())
    p = chi_square_p(counts, probs)
    assert p >= ALPHA, f"{what}: chi-square p = {p:.2g} over {len(samples)} samples, below {ALPHA:g}"
