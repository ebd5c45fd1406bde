"""Counters of our own beside SGLang's, on its metrics page."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

from dflash_core.schedule.base import CyclePlan

COUNTERS = {
    "cycles": "cycles, one for all requests that run together",
    "drafted_tokens": "drafts made",
    "verified_nodes": "drafts, or nodes of trees besides the anchor, that the target looked at",
    "accepted_tokens": "drafts that it kept",
    "plain_tokens": "requests that took part in a cycle without a draft",
}


PHASES = ("draft", "target", "verify", "adapter")
"""Of a cycle: the draft's forward and its context, the target's forward, the verdict, and all the rest."""


class Laps:
    """Host seconds of one cycle by phase; on a GPU those that it takes to launch, not to run."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._spent = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is done inside to a phase; phases do not nest."""
        begin = perf_counter()
        try:
            yield
        finally:
            self._spent[name] += perf_counter() - begin

    def stop(self) -> Mapping[str, float]:
        """Seconds by phase up to now; what was in no phase is the adapter's."""
        whole = perf_counter() - self._began
        return {**self._spent, "adapter": whole - sum(self._spent.values())}


class Counters:
    """Prometheus counters named `dflash_core:...`; SGLang has set the library up by the time of the first."""

    def __init__(self) -> None:
        from prometheus_client import Counter

        self._counters = {name: Counter(f"dflash_core:{name}", about) for name, about in COUNTERS.items()}
        about = "host seconds of cycles, by phase"
        seconds = Counter("dflash_core:cycle_seconds", about, ["phase"])
        self._seconds = {phase: seconds.labels(phase) for phase in PHASES}

    def observe(self, plan: CyclePlan, accepted: Sequence[int], seconds: Mapping[str, float]) -> None:
        """Count one cycle."""
        for name, count in counts(plan, accepted).items():
            self._counters[name].inc(count)
        for phase, spent in seconds.items():
            self._seconds[phase].inc(spent)


def counts(plan: CyclePlan, accepted: Sequence[int]) -> dict[str, int]:
    """What one cycle adds to each counter.

    Args:
        accepted: drafts accepted, one number a request.
    """
    return {
        "cycles": 1,
        "drafted_tokens": sum(size - 1 for size in plan.block_sizes),
        "verified_nodes": sum(plan.verified),
        "accepted_tokens": sum(accepted),
        "plain_tokens": sum(size == 1 for size in plan.block_sizes),
    }
