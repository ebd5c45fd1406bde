"""How many drafts to expect, by depth, learnt from those that were verified."""

from collections.abc import Sequence

PRIOR = 0.6
"""Acceptance assumed for a depth that was never seen; on the hopeful side, so that it is tried."""

PRIOR_WEIGHT = 4.0
"""Observations that a prior counts for: for the engine the constant above, for a request the engine."""

HALF_LIFE = 128.0
"""Observations after which an old one counts half: text changes its nature within a request."""


class DepthCounts:
    """Decayed counts of accepted and verified drafts a depth."""

    def __init__(self) -> None:
        self.accepted: list[float] = []
        self.verified: list[float] = []

    def observe(self, accepted: int, depth: int) -> None:
        """A block of which `depth` drafts were verified and the first `accepted` were kept."""
        missing = depth - len(self.verified)
        if missing > 0:
            self.accepted += [0.0] * missing
            self.verified += [0.0] * missing
        decay = 0.5 ** (1.0 / HALF_LIFE)
        for slot in range(min(accepted + 1, depth)):
            self.verified[slot] = self.verified[slot] * decay + 1.0
            self.accepted[slot] = self.accepted[slot] * decay + (slot < accepted)

    def rate(self, slot: int, prior: float) -> float:
        """Acceptance of a depth given that all before it were accepted."""
        if slot >= len(self.verified):
            return prior
        return (self.accepted[slot] + PRIOR_WEIGHT * prior) / (self.verified[slot] + PRIOR_WEIGHT)


def expected_tokens(engine: DepthCounts, request: DepthCounts | None, depth: int) -> list[float]:
    """Expected tokens a cycle by verify length: entry v - 1 for a verify length of v, up to `depth` drafts.

    A request's own experience refines the engine's, and a depth inherits from the one before it.
    """
    expected, survival, prior = [1.0], 1.0, PRIOR
    for slot in range(depth):
        prior = engine.rate(slot, prior)
        rate = prior if request is None else request.rate(slot, prior)
        survival *= rate
        expected.append(expected[-1] + survival)
    return expected


def mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """Column means of ragged rows, a short row going on with its last entry."""
    width = max(len(row) for row in rows)
    return [sum(row[min(i, len(row) - 1)] for row in rows) / len(rows) for i in range(width)]
