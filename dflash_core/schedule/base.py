"""Schedules decide, before each cycle, how much is drafted and how much of it is verified."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_core.stats import PhaseSeconds


@dataclass(frozen=True)
class RequestView:
    """What a schedule may know of a request.

    Attributes:
        id: the decoder's number for it.
        context: committed tokens before the anchor.
        remaining: tokens it may still produce, at least 1.
        block_size: its upper bound of slots, anchor included.
        verify_length: the request's own setting: "auto", "block", or a number that counts the anchor.
        tree_budget: nodes of its tree, anchor not counted; `None` for a chain; "auto" when the schedule may
            choose, a chain as well.
    """

    id: int
    context: int
    remaining: int
    block_size: int
    verify_length: int | str
    tree_budget: int | str | None


@dataclass(frozen=True)
class CyclePlan:
    """One entry a request.

    Attributes:
        block_sizes: slots drafted, anchor included; 1 is plain decoding (no draft).
        verify_lengths: deepest slot verified + 1, anchor included: 1 to block size.
        tree_budgets: nodes besides the anchor; `None` for a chain of `verify_length` nodes.
        reasons: why a request decodes plainly, else `None`.
    """

    block_sizes: tuple[int, ...]
    verify_lengths: tuple[int, ...]
    tree_budgets: tuple[int | None, ...]
    reasons: tuple[str | None, ...]

    @property
    def verified(self) -> tuple[int, ...]:
        """Nodes verified besides the anchor."""
        return tuple(
            length - 1 if budget is None else budget
            for length, budget in zip(self.verify_lengths, self.tree_budgets, strict=True)
        )

    @property
    def drafts(self) -> bool:
        return any(size > 1 for size in self.block_sizes)


class Schedule(Protocol):
    """Plans cycles and learns from what came of them."""

    name: str

    def plan(self, requests: Sequence[RequestView]) -> CyclePlan: ...

    def observe(
        self,
        requests: Sequence[RequestView],
        plan: CyclePlan,
        accepted: Sequence[Sequence[int]],
        seconds: PhaseSeconds,
    ) -> None:
        """Learn what came of a plan.

        Args:
            accepted: per request its accepted drafts, each as its rank: the least budget of a tree that takes
                it in. Of a chain these are 1 to as many as were accepted.
            seconds: what the cycle took.
        """
        ...
