"""The core's cycle where SGLang owns the loop: plan, draft, verify, and what is to be kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from dflash_backends.sglang.layout import Nodes, nodes_of
from dflash_backends.sglang.metrics import Counters, Laps
from dflash_backends.sglang.requests import batch_sampling, view_of
from dflash_backends.sglang.target import SGLangTarget
from dflash_core.drafter.block import BlockDrafter
from dflash_core.drafter.hosted import HostedContext
from dflash_core.errors import UnsupportedError
from dflash_core.loading import load_draft
from dflash_core.plugins import provider
from dflash_core.proposal import Proposal
from dflash_core.rollback.base import RollbackPlan, RollbackPolicy
from dflash_core.sampling import SamplingBatch
from dflash_core.schedule.base import CyclePlan, RequestView, Schedule
from dflash_core.settings import Settings
from dflash_core.stats import PhaseSeconds
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict
from dflash_core.verify.base import Verifier


@dataclass(frozen=True)
class Drafting:
    """One cycle up to the target's forward."""

    views: Sequence[RequestView]
    plan: CyclePlan
    sampling: SamplingBatch
    proposal: Proposal
    nodes: Nodes


class Cycle:
    """Drafter, schedule, verifier and rollback of a server, as its settings name them."""

    def __init__(
        self, settings: Settings, target: SGLangTarget, server_seed: int, counters: Counters | None = None
    ) -> None:
        """
        Args:
            server_seed: for requests without a seed of their own.
            counters: where cycles are counted; nowhere when `None`.

        Raises:
            DFlashError: the draft cannot be read, or does not fit.
            UnsupportedError: a drafter that keeps its context in another way.
        """
        options: dict[str, Any] = {"fast": settings.fast, "proposal": settings.proposal}
        if settings.draft_window is not None:
            options["draft_window"] = settings.draft_window
        if settings.draft_vocab is not None:
            options["draft_vocab"] = settings.draft_vocab
        drafter = load_draft(cast(str, settings.draft), target, settings.drafter, **options)
        if not isinstance(drafter, BlockDrafter):
            raise UnsupportedError(
                f"drafter is {settings.drafter!r}, which cannot keep its context in SGLang's slots; "
                'use "block".'
            )
        self.drafter = drafter
        self.block_size = settings.block_size or drafter.block_size
        self._settings = settings
        self._seed = server_seed
        self._counters = counters
        self._device = target.info.device
        self._verifier: Verifier = provider("verifiers", settings.verifier)()
        self._schedule: Schedule = provider("schedules", settings.schedule)(target, drafter)
        self._crop: RollbackPolicy = provider("rollbacks", "crop")()
        self._gather: RollbackPolicy = provider("rollbacks", "gather")()
        self._last: tuple[Drafting, Mapping[str, float]] | None = None

    def draft(
        self,
        requests: Sequence[Any],
        anchors: Tensor,
        context: HostedContext,
        lengths: Tensor,
        width: int | None,
        laps: Laps,
    ) -> Drafting:
        """Plan the cycle and propose.

        Args:
            anchors: [B] int64. lengths: [B] int64, their positions.
            width: nodes a request that the target's forward must have; as many as needed when `None`.
        """
        host = context.lengths
        views = [
            view_of(request, length, self.block_size, self._settings)
            for request, length in zip(requests, host, strict=True)
        ]
        plan = self._schedule.plan(views)
        sampling = batch_sampling(requests, host, self._seed, self._device)
        with laps.phase("draft"):
            proposal = self.drafter.propose(anchors, context, plan, sampling)
        nodes = nodes_of(proposal.tree, lengths, host, max(width or 0, proposal.tree.width))
        return Drafting(views, plan, sampling, proposal, nodes)

    def verify(self, drafting: Drafting, logits: Tensor) -> Verdict:
        """The verdict on [B, N, V] logits of the proposal's nodes."""
        return self._verifier.verify(drafting.proposal, logits, drafting.sampling)

    def rollback(self, tree: TokenTree, verdict: Verdict) -> RollbackPlan:
        """What both caches keep. How many positions is read by SGLang, later, so the plan has no counts."""
        return (self._crop if tree.is_chain else self._gather).plan(tree, verdict, ())

    def done(self, drafting: Drafting, laps: Laps) -> None:
        """A cycle is over, as far as this process knows: what was accepted is told to `observe`, later."""
        self._last = (drafting, laps.stop())

    def observe(self, accepted: Sequence[int]) -> None:
        """Tell the schedule what came of the last cycle."""
        if self._last is None:
            return
        drafting, spent = self._last
        self._last = None
        if len(accepted) == len(drafting.views):
            if self._counters is not None:
                self._counters.observe(drafting.plan, accepted, spent)
            seconds = PhaseSeconds(
                plan=spent["adapter"], draft=spent["draft"], verify=spent["target"] + spent["verify"]
            )
            # Trees of a server are asked for, and of those a schedule learns nothing.
            ranks = [range(1, count + 1) for count in accepted]
            self._schedule.observe(drafting.views, drafting.plan, ranks, seconds)
