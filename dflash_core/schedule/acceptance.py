"""How many drafts to expect, learnt from those that were verified."""

from collections.abc import Collection, Sequence

PRIOR = 0.6
"""Acceptance assumed of the first draft while none was seen; on the hopeful side, so that it is tried."""

CARRY = 0.8
"""Acceptance assumed of a draft that was never seen, as a share of the one before it: hopeful, too."""

PRIOR_WEIGHT = 4.0
"""Observations that a prior counts for: for the engine the constants above, for a request the engine."""

HALF_LIFE = 128.0
"""Observations after which an old one counts half: text changes its nature within a request."""


class RankCounts:
    """Decayed counts of accepted and verified drafts by rank.

    A draft's rank is the least budget that takes it in, so that one cycle with a budget says what every
    smaller budget would have brought. The drafts of a chain have the ranks 1, 2, ...
    """

    def __init__(self) -> None:
        self.accepted: list[float] = []
        self.verified: list[float] = []

    def observe(self, accepted: Collection[int], budget: int) -> None:
        """Drafts of the ranks 1 to `budget` were verified, and those of the ranks `accepted` were kept."""
        missing = budget - len(self.verified)
        if missing > 0:
            self.accepted += [0.0] * missing
            self.verified += [0.0] * missing
        decay = 0.5 ** (1.0 / HALF_LIFE)
        for index in range(budget):
            self.verified[index] = self.verified[index] * decay + 1.0
            self.accepted[index] = self.accepted[index] * decay + (index + 1 in accepted)

    def rate(self, rank: int, prior: float) -> float:
        """How often a draft of this rank (from 1) was accepted."""
        if rank > len(self.verified):
            return prior
        return (self.accepted[rank - 1] + PRIOR_WEIGHT * prior) / (self.verified[rank - 1] + PRIOR_WEIGHT)


def expected_tokens(engine: RankCounts, request: RankCounts | None, budget: int) -> list[float]:
    """Expected tokens a cycle by the number of drafts verified: entry n for n drafts, 0 to `budget`.

    A request's own experience refines the engine's, and a rank inherits from the one before it.
    """
    expected, prior = [1.0], PRIOR
    for rank in range(1, budget + 1):
        rate = engine.rate(rank, prior)
        prior = CARRY * rate
        expected.append(expected[-1] + (rate if request is None else request.rate(rank, rate)))
    return expected


def mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """Column means of ragged rows, a short row going on with its last entry."""
    width = max(len(row) for row in rows)
    return [sum(row[min(i, len(row) - 1)] for row in rows) / len(rows) for i in range(width)]
