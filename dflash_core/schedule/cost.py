"""What a cycle costs on this machine, learnt from the cycles themselves."""

from bisect import bisect
from collections.abc import Callable, Mapping

MEMORY = 0.1
"""Weight of a new measurement; a single slow cycle on a busy machine moves an estimate by at most a tenth."""

OUTLIER = 1.5
"""A measurement counts at most this many times the estimate, which it may have to reach in several steps."""


FIRST = 3
"""Of so many first measurements the least counts: the very first call of anything is slow."""


class Running:
    """An exponentially weighted mean that one outlier cannot spoil."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = 0

    def add(self, measured: float) -> None:
        self.count += 1
        if self.value is None:
            self.value = measured
        elif self.count <= FIRST:
            self.value = min(self.value, measured)
        else:
            self.value += MEMORY * (min(measured, OUTLIER * self.value) - self.value)


class CycleCost:
    """Seconds of a cycle by the rows (tokens) of its verify forward.

    Row counts that were seen a few times are known by themselves. The others come from the calibrated curve
    where there is one, times how far the present (a longer context, a busier machine) is from that curve.
    """

    def __init__(self, calibrated: Callable[[int], float | None]) -> None:
        self._calibrated = calibrated
        self._measured: dict[int, Running] = {}
        self._scale = Running()
        self._draft = Running()
        self._other = Running()

    def observe(self, rows: int, verify: float, draft: float | None, other: float) -> None:
        """Seconds of one cycle: its verify forward over `rows` tokens, its draft, everything else."""
        self._measured.setdefault(rows, Running()).add(verify)
        base = self._calibrated(rows)
        if base is not None:
            self._scale.add(verify / base)
        if draft is not None:
            self._draft.add(draft)
        self._other.add(other)

    @property
    def knows_drafting(self) -> bool:
        """Whether a drafted cycle was seen."""
        return self._draft.value is not None

    @property
    def knows_forward(self) -> bool:
        """Whether forwards of any row count can be estimated."""
        return self._calibrated(1) is not None or len(self._measured) > 1

    def cycle(self, rows: int, drafts: bool) -> float:
        """Expected seconds of a cycle; call it when both properties above hold."""
        seconds = self._verify(rows) + (self._other.value or 0.0)
        return seconds + (self._draft.value or 0.0) if drafts else seconds

    def _verify(self, rows: int) -> float:
        base = self._calibrated(rows)
        own = self._measured.get(rows)
        if base is not None and own is not None and own.value is not None and own.count >= FIRST:
            return own.value
        if base is not None:
            return base * (1.0 if self._scale.value is None else self._scale.value)
        known = {at: running.value for at, running in self._measured.items() if running.value is not None}
        return interpolate(known, rows)


def interpolate(known: Mapping[int, float], at: int) -> float:
    """Piecewise linear through the known points, and on beyond the outermost two; never below the least."""
    if at in known:
        return known[at]
    points = sorted(known)
    right = min(max(bisect(points, at), 1), len(points) - 1)
    low, high = points[right - 1], points[right]
    slope = (known[high] - known[low]) / (high - low)
    return max(known[low] + slope * (at - low), min(known.values()))
