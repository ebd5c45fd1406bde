"""Counters of our own beside SGLang's, on its metrics page."""

from collections.abc import Sequence

from dflash_core.schedule.base import CyclePlan

COUNTERS = {
    "cycles": "cycles, one for all requests that run together",
    "drafted_tokens": "drafts made",
    "verified_nodes": "drafts, or nodes of trees besides the anchor, that the target looked at",
    "accepted_tokens": "drafts that it kept",
    "plain_tokens": "requests that took part in a cycle without a draft",
}


class Counters:
    """Prometheus counters named `dflash_core:...`; SGLang has set the library up by the time of the first."""

    def __init__(self) -> None:
        from prometheus_client import Counter

        self._counters = {name: Counter(f"dflash_core:{name}", about) for name, about in COUNTERS.items()}

    def observe(self, plan: CyclePlan, accepted: Sequence[int]) -> None:
        """Count one cycle."""
        for name, count in counts(plan, accepted).items():
            self._counters[name].inc(count)


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
