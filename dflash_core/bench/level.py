"""How hard a system is pressed: so many requests at once, or so many arriving a second."""

import random
from dataclasses import dataclass

from dflash_core.errors import SettingsError

REQUESTS_A_ROUND = 4
"""Rounds of several requests at once are this many times as long as there are requests at once."""

ARRIVALS_A_ROUND = 32


@dataclass(frozen=True)
class Level:
    """A closed loop (`concurrency`: who is answered asks again) or an open one (`rate`: requests arrive).

    Exactly one of the two is given.

    Attributes:
        concurrency: requests at once.
        rate: mean arrivals a second, with exponential gaps.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise SettingsError(f"--concurrency is {self.concurrency}; it must be at least 1.")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise SettingsError(f"--rate is {self.rate}; it must be above 0 requests a second.")

    @property
    def label(self) -> str:
        """E.g. "4 at once" or "0.5 a second"."""
        return f"{self.rate:g} a second" if self.concurrency is None else f"{self.concurrency} at once"

    @property
    def natural_round(self) -> int:
        """Requests that a system answers before it is the next one's turn.

        One by one for a single user, so that a drifting machine favours nobody. Otherwise long enough that
        the beginning and the end of a round, when fewer requests run, do not decide the figures.
        """
        if self.concurrency is None:
            return ARRIVALS_A_ROUND
        return 1 if self.concurrency == 1 else REQUESTS_A_ROUND * self.concurrency

    def arrivals(self, count: int, seed: str) -> list[float] | None:
        """Seconds after the beginning of a round at which its requests arrive; `None` in a closed loop."""
        if self.rate is None:
            return None
        generator, now, times = random.Random(seed), 0.0, []
        for _ in range(count):
            times.append(now)
            now += generator.expovariate(self.rate)
        return times
