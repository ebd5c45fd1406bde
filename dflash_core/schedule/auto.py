"""Chooses each cycle's verify length, or plain decoding, by expected tokens a second."""

from collections.abc import Callable, Sequence

from dflash_core.schedule.acceptance import DepthCounts, expected_tokens, mean
from dflash_core.schedule.base import CyclePlan, RequestView
from dflash_core.schedule.cost import CycleCost
from dflash_core.schedule.fixed import asked_length, plan_lengths
from dflash_core.stats import PhaseSeconds

MARGIN = 1.05
"""A draft must promise this much more than plain decoding: estimates are noisy, plain decoding is safe."""

FIRST_PAUSE = 8
LAST_PAUSE = 128
"""Plain cycles before a draft is tried again; doubles while the trials fail."""

REFRESH = 48
"""Drafted cycles after which one is plain, so that it stays known what plain decoding costs now."""

DRAFT_DOES_NOT_PAY = "drafting does not pay here"


class AutoSchedule:
    """Picks the verify length with the best expected tokens a second, one for the whole batch.

    Expected tokens come from acceptance by depth as seen so far, seconds from the calibrated curve of the
    target's forward and from the cycles themselves. Where no length beats plain decoding, it decodes
    plainly and tries a draft again after a pause that grows while the trials fail. It drafts no more slots
    than it verifies: what later slots add to the earlier ones is small, and is in the acceptance it sees.
    Requests that ask for a verify length of their own, or for a tree, get just that.
    """

    name = "auto"

    def __init__(self, target: object = None, drafter: object = None) -> None:
        """
        Args:
            target: its `forward_seconds(rows) -> float | None` is used where it has one.
            drafter: not needed; the argument is every schedule's.
        """
        calibrated: Callable[[int], float | None] = getattr(target, "forward_seconds", lambda rows: None)
        self._cost = CycleCost(calibrated)
        self._engine = DepthCounts()
        self._requests: dict[int, DepthCounts] = {}
        self._contexts: dict[int, int] = {}
        self._pause = 0
        self._next_pause = FIRST_PAUSE
        self._drafted = 0

    def plan(self, requests: Sequence[RequestView]) -> CyclePlan:
        asked = [asked_length(request) for request in requests]
        free = [request for request, length in zip(requests, asked, strict=True) if length is None]
        chosen = self._choose(free, len(requests)) if free else 1
        reasons = [DRAFT_DOES_NOT_PAY if length is None else None for length in asked]
        lengths = [chosen if length is None else length for length in asked]
        return plan_lengths(requests, lengths, reasons, short=[length is None for length in asked])

    def observe(
        self,
        requests: Sequence[RequestView],
        plan: CyclePlan,
        accepted: Sequence[int],
        seconds: PhaseSeconds,
    ) -> None:
        drafted = plan.drafts
        rows = len(requests) * max(plan.verify_lengths)
        # The first draft of a request also takes in its prompt, which says nothing about the next ones.
        steady = drafted and not self._any_new(requests, plan)
        if not any(plan.tree_budgets):
            self._cost.observe(
                rows, seconds.verify, seconds.draft if steady else None, seconds.plan + seconds.commit
            )
        for request, length, budget, count in zip(
            requests, plan.verify_lengths, plan.tree_budgets, accepted, strict=True
        ):
            if length > 1 and budget is None:
                self._engine.observe(count, length - 1)
                self._requests.setdefault(request.id, DepthCounts()).observe(count, length - 1)
        running = {request.id for request in requests}
        if len(self._requests) > 2 * len(running) + 64:
            self._requests = {key: value for key, value in self._requests.items() if key in running}

    def _any_new(self, requests: Sequence[RequestView], plan: CyclePlan) -> bool:
        """Whether a request is drafted for the first time; another decoder may use its number again."""
        new = [
            request
            for request, length in zip(requests, plan.verify_lengths, strict=True)
            if length > 1 and request.context <= self._contexts.get(request.id, request.context)
        ]
        for request in new:
            self._requests.pop(request.id, None)
        self._contexts = {request.id: request.context for request in requests}
        return bool(new)

    def _choose(self, requests: Sequence[RequestView], batch: int) -> int:
        if self._pause > 0:
            self._pause -= 1
            self._drafted = 0
            return 1
        deepest = max(min(request.block_size, request.remaining) for request in requests)
        if deepest == 1:
            return 1
        if not self._cost.knows_drafting:
            return deepest
        if not self._cost.knows_forward:
            return 1
        expected = mean(
            [
                expected_tokens(self._engine, self._requests.get(r.id), min(r.block_size, r.remaining) - 1)
                for r in requests
            ]
        )
        rates = [
            tokens / self._cost.cycle(batch * length, drafts=length > 1)
            for length, tokens in enumerate(expected, start=1)
        ]
        best = max(range(1, len(rates)), key=rates.__getitem__)
        self._drafted += 1
        if self._drafted > REFRESH:
            self._drafted = 0
            return 1
        if rates[best] < MARGIN * rates[0]:
            # This cycle is the trial that ends a pause; another pause follows unless it goes well.
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LAST_PAUSE)
        else:
            self._next_pause = FIRST_PAUSE
        return best + 1
