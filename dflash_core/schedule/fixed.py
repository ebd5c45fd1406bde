"""Always the same: the whole block, or the verify length that the request asks for."""

from collections.abc import Sequence

from dflash_core.schedule.base import CyclePlan, RequestView
from dflash_core.stats import PhaseSeconds

LAST_TOKEN = "one token left"
BLOCK_OF_ONE = "block size 1"


class FixedSchedule:
    """Drafts a whole block and verifies what the request asks for ("auto" means all of it)."""

    name = "fixed"

    def __init__(self, target: object = None, drafter: object = None) -> None:
        """Needs to know nothing of the pair; the arguments are those of every schedule."""

    def plan(self, requests: Sequence[RequestView]) -> CyclePlan:
        return plan_lengths(requests, [asked_length(request) or request.block_size for request in requests])

    def observe(
        self,
        requests: Sequence[RequestView],
        plan: CyclePlan,
        accepted: Sequence[Sequence[int]],
        seconds: PhaseSeconds,
    ) -> None:
        """Nothing is learnt."""


def asked_length(request: RequestView) -> int | None:
    """The verify length that a request insists on; `None` when the schedule may choose."""
    if isinstance(request.verify_length, int):
        return request.verify_length
    whole = request.verify_length == "block" or isinstance(request.tree_budget, int)
    return request.block_size if whole else None


def plan_lengths(
    requests: Sequence[RequestView],
    lengths: Sequence[int],
    reasons: Sequence[str | None] | None = None,
    short: Sequence[bool] | None = None,
    trees: Sequence[int | None] | None = None,
) -> CyclePlan:
    """A plan with these verify lengths, shortened to what each request can still use.

    The block shrinks near the end as in the reference implementation (it drafts `remaining + 1` slots
    there), because a bidirectional draft depends on its block's length. The last of those slots is never
    verified: its token could not be kept.

    Args:
        lengths: wanted verify lengths, anchor included; 1 is plain decoding.
        reasons: why a request is to decode plainly.
        short: which requests draft no more slots than are verified, instead of a whole block.
        trees: budgets of the requests that leave theirs open; `None` for a chain.
    """
    blocks, verify, budgets, why = [], [], [], []
    for index, (request, wanted) in enumerate(zip(requests, lengths, strict=True)):
        block = min(request.block_size, request.remaining + 1)
        length = min(wanted, block, request.remaining)
        plain = length == 1
        blocks.append(length if plain or (short and short[index]) else block)
        verify.append(length)
        budget = (trees[index] if trees else None) if request.tree_budget == "auto" else request.tree_budget
        budgets.append(None if plain or not isinstance(budget, int) else budget)
        why.append(_why(request, reasons[index] if reasons else None) if plain else None)
    return CyclePlan(tuple(blocks), tuple(verify), tuple(budgets), tuple(why))


def _why(request: RequestView, given: str | None) -> str | None:
    if request.remaining == 1:
        return LAST_TOKEN
    return BLOCK_OF_ONE if request.block_size == 1 else given
