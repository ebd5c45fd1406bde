"""Percentiles, and how sure a figure is: bootstrap estimates that share their resamples."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 4000
INTERVAL = (0.025, 0.975)
"""Quantiles of the interval that is shown: 95 % lie between them."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure and what it would have been for other requests, as many of the same kind.

    Attributes:
        value: of the requests as they were.
        samples: [R] of R draws with replacement, spread by `widening`; draw r is of the same requests in
            every estimate that was made with the same weights.
    """

    value: float
    samples: Floats

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        return self.at(INTERVAL[0])

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        return self.at(INTERVAL[1])

    def at(self, quantile: float) -> float | None:
        """A quantile (0 to 1) of the draws; `None` of a single request, which says nothing of others."""
        found = float(np.quantile(self.samples, quantile))
        return None if math.isnan(found) else found

    def within(self, least: float, most: float) -> Estimate:
        """With draws that stay where such a figure can lie: widening knows nothing of its limits."""
        return Estimate(self.value, np.clip(self.samples, least, most))

    def to_dict(self) -> dict[str, float | None]:
        """Value and interval, as JSON."""
        return {"value": self.value, "low": self.low, "high": self.high, "p05": self.at(0.05)}


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """A quantile (0 to 1) by linear interpolation; `None` of nothing."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), quantile)) if len(values) else None


def draw_weights(count: int, seed: int, group: str, resamples: int = RESAMPLES) -> Floats:
    """How often each of `count` requests is in each draw with replacement, [R, count].

    The same seed and group give the same draws, so that figures of different systems are compared on the same
    requests, as they were measured.

    Source: Efron and Tibshirani 1993, section 6.2.
    """
    generator = np.random.default_rng([seed, zlib.crc32(group.encode())])
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=resamples)
    return drawn.astype(np.float64)


def ratio_of_sums(tops: Sequence[float], bottoms: Sequence[float], weights: Floats) -> Estimate | None:
    """Sum of tops over sum of bottoms, one entry a request; `None` where there is nothing to divide by.

    Draws in which every bottom is 0 are left at the figure itself: they say nothing.
    """
    top, bottom = np.asarray(tops, dtype=np.float64), np.asarray(bottoms, dtype=np.float64)
    if not bottom.sum() > 0:
        return None
    value = float(top.sum() / bottom.sum())
    below = weights @ bottom
    samples = np.full(len(weights), value)
    if len(top) < 2:
        return Estimate(value, np.full(len(weights), np.nan))
    np.divide(weights @ top, below, out=samples, where=below > 0)
    return Estimate(value, samples if value == 0 else value * (samples / value) ** widening(len(top)))


def widening(count: int) -> float:
    """By how much draws of a few requests differ too little from each other.

    Their variance is that of a sample that knows its own mean, (n - 1) / n of what it should be, and they
    take what they vary by for known, as a normal distribution does and Student's does not.

    Source: Hesterberg 2015, "What teachers should know about the bootstrap", on percentile intervals that are
    too narrow; Student's quantile by its expansion around the normal one, within 3 % from 3 requests on.
    """
    z, rest = 1.959964, count - 1
    terms = (
        *((z**2 + 1) / (4 * rest), (5 * z**4 + 16 * z**2 + 3) / (96 * rest**2)),
        (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / (384 * rest**3),
    )
    return math.sqrt(count / rest) * (1 + sum(terms))


def quotient(top: Estimate | None, bottom: Estimate | None) -> Estimate | None:
    """One figure over another, draw by draw; `None` where one is unknown or the lower one is 0."""
    if top is None or bottom is None or not bottom.value > 0:
        return None
    value = top.value / bottom.value
    samples = np.full(len(top.samples), value)
    np.divide(top.samples, bottom.samples, out=samples, where=~(bottom.samples <= 0))
    return Estimate(value, samples)


def mean_of(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The unweighted mean of several figures, draw by draw; `None` where one of them is unknown."""
    known = [estimate for estimate in estimates if estimate is not None]
    if not known or len(known) < len(estimates):
        return None
    values = [estimate.value for estimate in known]
    return Estimate(sum(values) / len(values), np.mean([estimate.samples for estimate in known], axis=0))
