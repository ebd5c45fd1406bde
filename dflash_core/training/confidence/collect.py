"""Decodes prompts and writes down, a block, what the draft's slots looked like and what became of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dflash_core.decoder import Decoder
from dflash_core.drafter.base import DraftContext
from dflash_core.drafter.block import BlockDrafter
from dflash_core.errors import RequestError, UnsupportedError
from dflash_core.generation import build_decoder
from dflash_core.proposal import Proposal
from dflash_core.request import Request
from dflash_core.sampling import SamplingBatch, SamplingParams
from dflash_core.schedule.base import CyclePlan, RequestView
from dflash_core.schedule.fixed import FixedSchedule
from dflash_core.stats import PhaseSeconds
from dflash_core.target import TargetModel
from dflash_core.training.confidence.observations import Observations

LARGEST = 60_000.0
"""Of a hidden state, so that it fits into 16 bits."""


@dataclass(frozen=True)
class CollectOptions:
    """How blocks are observed.

    Attributes:
        max_new_tokens: of a prompt's answer.
        temperature: that the target is sampled at; confidence depends on it.
        seed: of the first prompt's sampling, the next has the next.
        max_batch: prompts decoded together.
        max_blocks: where it ends at the latest; what follows is not decoded.
    """

    max_new_tokens: int = 192
    temperature: float = 0.0
    seed: int = 0
    max_batch: int = 8
    max_blocks: int = 200_000


def observe(
    target: TargetModel,
    drafter: BlockDrafter,
    prompts: Sequence[Sequence[int]],
    options: CollectOptions,
    on_progress: Callable[[int, int], None] = lambda prompts, blocks: None,
) -> Observations:
    """Decode prompts (token ids) with whole blocks drafted and verified, as chains.

    Args:
        on_progress: called with the number of prompts and of blocks that are done.

    Raises:
        RequestError: a prompt does not fit the target, or nothing was drafted.
        UnsupportedError: the drafter is of another kind, with no hidden states to look at.
    """
    if not isinstance(drafter, BlockDrafter):
        raise UnsupportedError(f"A confidence head needs a block drafter, not {type(drafter).__name__}.")
    watched = _Watched(drafter)
    schedule = _Scribe(watched, drafter.block_size - 1)
    hook = drafter.network.register_forward_hook(watched.network_ran)
    try:
        decoder = build_decoder(target, watched, schedule=schedule, max_batch=options.max_batch)
        _add(decoder, target, prompts, options)
        done = 0
        while not decoder.idle and schedule.blocks < options.max_blocks:
            done += sum(delta.finish_reason is not None for delta in decoder.step())
            on_progress(done, schedule.blocks)
    finally:
        hook.remove()
    if not schedule.blocks:
        raise RequestError("Nothing was drafted; there must be prompts, with answers longer than a token.")
    return schedule.observations()


def _add(
    decoder: Decoder, target: TargetModel, prompts: Sequence[Sequence[int]], options: CollectOptions
) -> None:
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(options.temperature, seed=options.seed + index)
        decoder.add(
            Request(
                tuple(prompt),
                options.max_new_tokens,
                target.info.eos_token_ids,
                sampling,
                verify_length="block",
            )
        )


class _Watched:
    """A block drafter whose last forward is remembered."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self._drafter = drafter
        self.name = drafter.name
        self.block_size = drafter.block_size
        self.taps = drafter.taps
        self.start, self.join, self.commit = drafter.start, drafter.join, drafter.commit
        self.first = 1 - drafter.spec.anchor_predicts  # the slot that predicts the first draft
        self.hidden: Tensor | None = None
        self.proposal: Proposal | None = None

    def network_ran(self, module: object, inputs: object, output: Tensor) -> None:
        self.hidden = output

    def propose(
        self, anchors: Tensor, context: DraftContext, plan: CyclePlan, sampling: SamplingBatch
    ) -> Proposal:
        self.proposal = self._drafter.propose(anchors, context, plan, sampling)
        return self.proposal


@dataclass
class _Pages:
    hidden: list[Tensor] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)


class _Scribe(FixedSchedule):
    """Verifies whole blocks, and writes each cycle down when it is told what came of it."""

    def __init__(self, watched: _Watched, slots: int) -> None:
        super().__init__()
        self._watched = watched
        self._slots = slots
        self._pages = _Pages()

    @property
    def blocks(self) -> int:
        return len(self._pages.accepted)

    def observe(
        self,
        requests: Sequence[RequestView],
        plan: CyclePlan,
        accepted: Sequence[Sequence[int]],
        seconds: PhaseSeconds,
    ) -> None:
        """Of the rows whose block had its full length; a shorter one at a request's end is another task."""
        hidden, proposal = self._watched.hidden, self._watched.proposal
        self._watched.hidden = self._watched.proposal = None
        if hidden is None or proposal is None or proposal.log_probs is None:
            return
        drafted = [row for row, length in enumerate(plan.verify_lengths) if length > 1]
        log_probs = proposal.log_probs[:, 1:].float().cpu()
        states = hidden[:, self._watched.first :].clamp(-LARGEST, LARGEST).half().cpu()
        for place, row in enumerate(drafted):
            if plan.block_sizes[row] != self._slots + 1:
                continue
            self._pages.hidden.append(_filled(states[place], self._slots))
            self._pages.log_probs.append(_filled(log_probs[row], self._slots))
            self._pages.accepted.append(len(accepted[row]))
            self._pages.verified.append(plan.verify_lengths[row] - 1)
            self._pages.groups.append(requests[row].id)

    def observations(self) -> Observations:
        pages = self._pages
        return Observations(
            torch.stack(pages.hidden),
            torch.stack(pages.log_probs),
            torch.tensor(pages.accepted),
            torch.tensor(pages.verified),
            torch.tensor(pages.groups),
        )


def _filled(rows: Tensor, length: int) -> Tensor:
    """[D', ...] to [length, ...]: what was not computed is 0."""
    return torch.cat([rows[:length], rows.new_zeros(max(0, length - len(rows)), *rows.shape[1:])])
