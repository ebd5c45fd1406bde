"""Chooses how many drafts each cycle verifies, or none, by expected tokens a second."""

from collections.abc import Callable, Sequence

from dflash_core.schedule.acceptance import RankCounts, expected_tokens, mean
from dflash_core.schedule.base import CyclePlan, RequestView
from dflash_core.schedule.cost import CycleCost
from dflash_core.schedule.fixed import asked_length, plan_lengths
from dflash_core.stats import PhaseSeconds

MARGIN = 1.05
"""A draft must promise this much more than plain decoding: estimates are noisy, plain decoding is safe."""

TRIAL = 3
"""Drafted cycles in a row that must all look bad before drafting pauses: one cycle says little."""

FIRST_PAUSE = 16
LAST_PAUSE = 256
"""Plain cycles before a draft is tried again; doubles while the trials fail."""

REFRESH = 48
"""Drafted cycles after which one is plain, so that it stays known what plain decoding costs now."""

TREE_NODES = 16
"""Most nodes of a tree that is chosen here: what later ones bring is little, and learnt slowly."""

DRAFT_DOES_NOT_PAY = "drafting does not pay here"


class AutoSchedule:
    """Picks the number of drafts with the best expected tokens a second, one for the whole batch.

    Expected tokens come from the acceptance seen so far, seconds from the calibrated curve of the target's
    forward and from the cycles themselves. Requests that may have a tree get one of that many nodes, since
    a tree's nodes are the best that the draft knows of; the others get a chain. Where no number beats plain
    decoding, it decodes plainly and tries a draft again after a pause that grows while the trials fail.
    It drafts no more slots than a branch can have: what later slots add to the earlier ones is small, and is
    in the acceptance it sees. Requests that ask for a verify length or a tree of their own get just that.
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
        # Chains and trees apart: a draft of one rank is not the same draft in both.
        self._engine = {False: RankCounts(), True: RankCounts()}
        self._requests: dict[int, RankCounts] = {}
        self._contexts: dict[int, int] = {}
        self._trial = 0
        self._pause = 0
        self._next_pause = FIRST_PAUSE
        self._drafted = 0

    def plan(self, requests: Sequence[RequestView]) -> CyclePlan:
        asked = [asked_length(request) for request in requests]
        free = [request for request, length in zip(requests, asked, strict=True) if length is None]
        drafts = self._choose(free, len(requests)) if free else 0
        reasons = [DRAFT_DOES_NOT_PAY if length is None else None for length in asked]
        lengths = [drafts + 1 if length is None else length for length in asked]
        return plan_lengths(
            requests,
            lengths,
            reasons,
            short=[length is None for length in asked],
            trees=[drafts if length is None and drafts > 1 else None for length in asked],
        )

    def observe(
        self,
        requests: Sequence[RequestView],
        plan: CyclePlan,
        accepted: Sequence[Sequence[int]],
        seconds: PhaseSeconds,
    ) -> None:
        verified = plan.verified
        # The first draft of a request also takes in its prompt, which says nothing about the next ones.
        steady = plan.drafts and not self._any_new(requests, plan)
        self._cost.observe(
            len(requests) * (1 + max(verified)),
            seconds.verify,
            seconds.draft if steady else None,
            seconds.plan + seconds.commit,
        )
        for request, count, ranks in zip(requests, verified, accepted, strict=True):
            if count > 0 and not isinstance(request.tree_budget, int):
                self._engine[_branches(request)].observe(ranks, count)
                self._requests.setdefault(request.id, RankCounts()).observe(ranks, count)
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
        """Drafts a request; 0 is plain decoding."""
        if self._pause > 0:
            self._pause -= 1
            self._drafted = 0
            return 0
        deepest = max(min(request.block_size, request.remaining) for request in requests) - 1
        if deepest == 0:
            return 0
        if not self._cost.knows_drafting:
            return min(deepest, TREE_NODES)
        if not self._cost.knows_forward:
            return 0
        expected = mean([self._expected(request) for request in requests])
        rates = [
            tokens / self._cost.cycle(batch * (1 + drafts), drafts=drafts > 0)
            for drafts, tokens in enumerate(expected)
        ]
        best = max(range(1, len(rates)), key=rates.__getitem__)
        self._drafted += 1
        if self._drafted > REFRESH:
            self._drafted = 0
            return 0
        if rates[best] >= MARGIN * rates[0]:
            self._trial, self._next_pause = 0, FIRST_PAUSE
        else:
            self._trial += 1
            if self._trial >= TRIAL:
                self._trial, self._pause = 0, self._next_pause
                self._next_pause = min(2 * self._next_pause, LAST_PAUSE)
        return best

    def _expected(self, request: RequestView) -> list[float]:
        """Expected tokens of a request by the number of its drafts."""
        deepest = min(request.block_size, request.remaining) - 1
        trees = _branches(request)
        most = TREE_NODES if trees and deepest > 0 else deepest
        return expected_tokens(self._engine[trees], self._requests.get(request.id), most)


def _branches(request: RequestView) -> bool:
    """Whether the request's drafts may be a tree."""
    return request.tree_budget == "auto" and request.verify_length == "auto"
